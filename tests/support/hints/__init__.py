"""A table of all hints, each with a wrong command and its correction."""
