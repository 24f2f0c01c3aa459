"""`hydractl make`: from checkpoints to a hydra, its table and a verdict."""
