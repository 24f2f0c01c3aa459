"""Learned gates on attention heads."""
