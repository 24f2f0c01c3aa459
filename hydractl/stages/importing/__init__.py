"""import: converts weights saved by a training script to a base."""
