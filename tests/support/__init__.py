"""Helpers of tests: tiny models with weights different from zero and one, and their files."""
