"""The training loop that every stage with gradients goes through."""
