"""`hydractl inspect`."""
