"""Data sets by name: where they lie, their splits, and which sets are out-of-distribution to them."""
