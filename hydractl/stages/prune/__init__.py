"""prune: choose which heads stay, and slice the others out."""
