"""Architectures: one family per group of models, and the table of all families."""
