"""prune: selects heads and slices the others out of the weights."""
