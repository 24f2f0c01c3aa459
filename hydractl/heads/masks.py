"""Masks of heads: whole ones, smaller ones, and the heads that they name or drop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.manifest.heads import HeadId, TowerKeep, TowerShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hydractl.manifest.heads import Mask, Shape


def full_mask(shape: Shape) -> dict[str, TowerKeep]:
    """Return the mask that keeps every head.

    Raises:
        ValueError: If a tower has no layer or no head.
    """
    return {
        tower: TowerKeep(num_heads=size.num_heads, keep=(tuple(range(size.num_heads)),) * size.layers)
        for tower, size in shape.items()
    }


def shape_of(towers: Shape) -> dict[str, TowerShape]:
    """Return the shape of a model before any head was removed."""
    return {name: TowerShape(t.layers, t.num_heads) for name, t in towers.items()}


def total_kept(mask: Mask) -> int:
    """Return how many heads stay, over all towers."""
    return sum(part.kept for part in mask.values())


def all_heads(shape: Shape) -> tuple[HeadId, ...]:
    """Return every head: by tower in the order of `shape`, then layer, then head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, size in shape.items()
        for layer in range(size.layers)
        for head in range(size.num_heads)
    )


def dropped(mask: Mask) -> tuple[HeadId, ...]:
    """Return the heads that a mask removes: by tower in the order of `mask`, then layer, then head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, part in mask.items()
        for layer, heads in enumerate(part.drop)
        for head in heads
    )


def drop_heads(mask: Mask, heads: Iterable[HeadId]) -> dict[str, TowerKeep]:
    """Return a mask with more heads removed.

    Args:
        mask: Unchanged.
        heads: In any order, each kept by `mask`.

    Raises:
        ValueError: If a head is not in the model, is already removed or comes twice.
    """
    shape = shape_of(mask)
    left = {tower: [set(kept) for kept in part.keep] for tower, part in mask.items()}
    for head in heads:
        check_head(head, shape)
        kept = left[head.tower][head.layer]
        if head.head not in kept:
            raise ValueError(f"{head} cannot be removed twice")
        kept.remove(head.head)
    return {
        tower: TowerKeep(num_heads=part.num_heads, keep=tuple(tuple(sorted(kept)) for kept in left[tower]))
        for tower, part in mask.items()
    }


def check_head(head: HeadId, shape: Shape) -> None:
    """Refuse a head that a model of this shape does not have.

    Raises:
        ValueError: If tower, layer or head is out of range.
    """
    if head.tower not in shape:
        known = ", ".join(f"`{tower}`" for tower in shape)
        raise ValueError(f"there is no tower `{head.tower}`, only {known}")
    size = shape[head.tower]
    if not (0 <= head.layer < size.layers and 0 <= head.head < size.num_heads):
        raise ValueError(
            f"there is no {head}: it has {size.layers} layers of {size.num_heads} heads, both counted from 0"
        )


def check_order(order: Sequence[HeadId], shape: Shape) -> None:
    """Refuse an order that has a head which the model lacks, or one head twice.

    Raises:
        ValueError: Naming the head.
    """
    drop_heads(full_mask(shape), order)
