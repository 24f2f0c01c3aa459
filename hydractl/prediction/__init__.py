"""Predictions of models on data: logits, OOD scores, temperatures, and results for users."""
