"""`hydractl demo`: a task a file."""
