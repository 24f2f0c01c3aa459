"""Importance scores of attention heads: one method per module, listed in one table."""
