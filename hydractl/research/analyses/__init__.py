"""Analyses of what models are and do: each asks models and data for numbers, and trains nothing."""
