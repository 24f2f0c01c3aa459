"""Baselines: methods that give uncertainty estimates for a trained model, with little or no training."""
