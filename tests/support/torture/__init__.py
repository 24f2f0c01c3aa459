"""Tools of `tests/torture`: a process for forking command lines, and injected faults."""
