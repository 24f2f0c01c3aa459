"""Scores from gradients."""
