"""prune: select heads and remove the others from the weights."""
