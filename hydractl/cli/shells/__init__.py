"""Shells: the scripts that complete a command line."""
