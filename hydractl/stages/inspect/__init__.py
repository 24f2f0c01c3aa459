"""inspect: describe the content of a file."""
