"""data: the named data sets."""
