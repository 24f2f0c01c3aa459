"""`hydractl run`."""
