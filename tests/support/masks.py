"""Conditions on head masks."""

from __future__ import annotations


def agree_before(masks, layer):
    """Return whether all masks keep the same heads in all layers before `layer`, in every tower."""
    return all(
        part.keep[:layer] == masks[0][tower].keep[:layer] for mask in masks for tower, part in mask.items()
    )
