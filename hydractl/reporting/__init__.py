"""Figures of what other stages wrote."""
