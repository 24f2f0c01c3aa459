"""data: the data sets that have names."""
