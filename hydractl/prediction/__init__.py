"""Predictions of models on data: opening models and data, logits of members, OOD scores, temperatures, results for users."""
