"""Tools of `tests/torture`: a process that forks command lines, and the faults injected into them."""
