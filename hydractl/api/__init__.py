"""The stages as functions of Python."""
