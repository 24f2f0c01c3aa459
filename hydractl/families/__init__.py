"""How an architecture is read: one file a family, one table."""
