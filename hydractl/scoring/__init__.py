"""Head importance: one method a file, one table."""
