"""Scores out of gradients."""
