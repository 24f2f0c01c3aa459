"""Terminal commands: parse a command line, call a stage, and print its report."""
