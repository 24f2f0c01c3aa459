"""Fuse plans, hydras, and the verification of hydras against their members."""
