"""The stages as Python functions."""
