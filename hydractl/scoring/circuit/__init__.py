"""Greedy circuit extraction (Hydra Ensembles, Algorithm 1)."""
