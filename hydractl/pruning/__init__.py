"""Selection of the heads that members keep, and the pruned members."""
