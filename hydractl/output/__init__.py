"""Outputs: locks, checks of paths, and atomic writes."""
