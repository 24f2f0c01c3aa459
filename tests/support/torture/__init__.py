"""What tests under `tests/torture` try command lines with: a process that forks them, and what may go wrong in one."""
