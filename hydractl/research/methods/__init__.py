"""Ways to train that others proposed, one module each."""
