"""`hydractl bench`."""
