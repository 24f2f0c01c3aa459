"""Functions of the commands, and printing of reports."""
