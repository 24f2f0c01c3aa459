"""inspect: shows what a file holds."""
