"""The command `hydractl bench`."""
