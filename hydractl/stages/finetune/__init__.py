"""finetune: train a base or a member."""
