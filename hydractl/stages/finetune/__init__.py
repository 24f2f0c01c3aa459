"""finetune: train a base, a member or a hydra."""
