"""Cutting heads out of a model while it is scored; heads are named as the base counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from hydractl.families.tower import Model, Tower
    from hydractl.manifest.heads import HeadId


def heads_left(tower: Tower, layer: int) -> tuple[int, ...]:
    """Return a layer's heads that are still there, increasing."""
    return tower.layers()[layer].attn.groups()[0].kept


def keep_heads(tower: Tower, layer: int, kept: Collection[int]) -> None:
    """Cut out all of a layer's heads but these; weights are really sliced, and the tensors cut are new ones."""
    attention = tower.layers()[layer].attn
    group = attention.groups()[0]
    attention.members[0] = group.select([i for i, head in enumerate(group.kept) if head in kept])


def remove_head(model: Model, head: HeadId) -> None:
    """Cut out one head."""
    tower = model.tower(head.tower)
    keep_heads(tower, head.layer, set(heads_left(tower, head.layer)) - {head.head})
