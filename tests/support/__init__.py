"""Helpers of tests: tiny models with perturbed weights, in memory and in files."""
