"""Processes of a run, and the signals to end them."""
