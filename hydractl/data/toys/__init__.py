"""Data that need no download."""
