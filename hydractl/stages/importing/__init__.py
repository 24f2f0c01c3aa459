"""import: weights that a training script saved become a base."""
