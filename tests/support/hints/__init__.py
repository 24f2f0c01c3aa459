"""A table of all hints: a wrong command for each, and the command that follows the hint."""
