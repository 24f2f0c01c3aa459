"""import: convert the weights of a training script to a base."""
