"""How outputs were made: the record of a command, whether an output is up to date, and where outputs may be written."""
