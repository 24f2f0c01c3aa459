"""Corruptions of images and texts, and metrics of models on corrupted data."""
