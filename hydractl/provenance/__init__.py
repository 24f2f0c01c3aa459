"""Provenance of outputs: the record of a command, the check of `--if-changed`, and publication."""
