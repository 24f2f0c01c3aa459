"""finetune: trains a base, a member or a hydra."""
