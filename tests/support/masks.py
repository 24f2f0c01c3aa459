"""Conditions on head masks."""

from __future__ import annotations

from hydractl.manifest.head_mask import HeadId


def agree_before(masks, layer):
    """Return whether all masks keep the same heads in all layers before `layer`, in every tower."""
    return all(
        part.keep[:layer] == masks[0][tower].keep[:layer] for mask in masks for tower, part in mask.items()
    )


def dropped_heads(mask):
    """Return the heads that a mask removes, sorted by tower (in the order of `mask`), layer and head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, part in mask.items()
        for layer, heads in enumerate(part.drop)
        for head in heads
    )
