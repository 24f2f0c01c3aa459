"""Families of architectures, and the table of all families."""
