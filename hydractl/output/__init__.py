"""Where outputs may go: locks, paths, and files that appear whole or not at all."""
