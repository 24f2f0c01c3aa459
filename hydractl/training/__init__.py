"""Training loop of all stages with gradients."""
