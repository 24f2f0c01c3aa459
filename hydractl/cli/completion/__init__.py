"""Static completion scripts."""
