"""Masks of heads: whole ones, smaller ones, and those that follow from an order in which heads go."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hydractl.manifest.head_mask import HeadId, Mask, Shape, Tables, TowerKeep, TowerShape


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
    return sum(part.num_kept for part in mask.values())


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
    kept_by_tower = {tower: [set(kept_heads) for kept_heads in part.keep] for tower, part in mask.items()}
    for head in heads:
        check_head(head, shape)
        kept_heads = kept_by_tower[head.tower][head.layer]
        if head.head not in kept_heads:
            raise ValueError(f"{head} cannot be removed twice")
        kept_heads.remove(head.head)
    return {
        tower: TowerKeep(
            num_heads=part.num_heads,
            keep=tuple(tuple(sorted(kept_heads)) for kept_heads in kept_by_tower[tower]),
        )
        for tower, part in mask.items()
    }


def check_head(head: HeadId, shape: Shape) -> None:
    """Refuse a head that a model of this shape does not have.

    Raises:
        ValueError: If tower, layer or head is out of range.
    """
    if head.tower not in shape:
        tower_names = ", ".join(f"`{tower}`" for tower in shape)
        raise ValueError(f"there is no tower `{head.tower}`, only {tower_names}")
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


def shape_of_scores(scores: Tables) -> dict[str, TowerShape]:
    """Return the shape of the model that per-tower L x H scores belong to.

    Raises:
        ValueError: If a tower is empty or its layers differ in their number of heads.
    """
    shape = {}
    for tower, rows in scores.items():
        widths = sorted({len(row) for row in rows})
        if len(widths) != 1 or widths[0] == 0:
            raise ValueError(
                f"scores of tower `{tower}` must be layers x heads, got rows of {widths or 'no'} heads"
            )
        shape[tower] = TowerShape(layers=len(rows), num_heads=widths[0])
    return shape


def removal_order(scores: Tables, recorded: Sequence[HeadId] | None = None) -> tuple[HeadId, ...]:
    """Return heads in the order in which they go.

    A recorded greedy order is taken as it is. Otherwise every head by ascending score over the whole model;
    of equal scores the lower (tower as ordered in `scores`, layer, head) goes first, which is also the first
    maximum that Algorithm 1 of the Hydra paper meets.

    Args:
        scores: For each tower L x H importances, finite, higher is kept.
        recorded: What a greedy method removed, first to last; may stop before all heads are gone.

    Raises:
        ValueError: If scores are ragged or not finite, or the recorded order has a head that the scores lack
            or one that comes twice.
    """
    shape = shape_of_scores(scores)
    if recorded is not None:
        order = tuple(HeadId(*head) for head in recorded)
        check_order(order, shape)
        return order
    heads = all_heads(shape)
    for head in heads:
        if not math.isfinite(scores[head.tower][head.layer][head.head]):
            raise ValueError(f"the score of {head} is not finite")
    return tuple(sorted(heads, key=lambda head: scores[head.tower][head.layer][head.head]))


def best_mask(order: Sequence[HeadId], shape: Shape, *, removals: int) -> dict[str, TowerKeep]:
    """Return the mask that removes the first heads of an order.

    Args:
        order: First to go first, as `removal_order` gives it.
        shape: The model's shape.
        removals: How many go, at least 0.

    Raises:
        ValueError: If the order is shorter than `removals`, or has a head that is not in the model or comes
            twice.
    """
    if not 0 <= removals <= len(order):
        raise ValueError(f"cannot remove {removals} heads: the removal order has {len(order)}")
    return drop_heads(full_mask(shape), order[:removals])


def best_mask_per_layer(order: Sequence[HeadId], shape: Shape, *, keep: int) -> dict[str, TowerKeep]:
    """Return the mask that keeps equally many heads in every layer: in each, the last ones of an order.

    Args:
        order: First to go first. One that stops early must still name enough heads of each layer.
        shape: The model's shape.
        keep: How many heads every layer keeps, at least 0.

    Raises:
        ValueError: If a layer has fewer heads than `keep`, the order names too few of its heads, or the order
            has a head that is not in the model or comes twice.
    """
    check_order(order, shape)
    chosen: list[HeadId] = []
    for tower, size in shape.items():
        if not 0 <= keep <= size.num_heads:
            raise ValueError(
                f"cannot keep {keep} heads per layer: layers of tower `{tower}` have {size.num_heads}"
            )
        surplus = size.num_heads - keep
        for layer in range(size.layers):
            named = [head for head in order if (head.tower, head.layer) == (tower, layer)]
            if len(named) < surplus:
                raise ValueError(
                    f"layer {layer} of tower `{tower}` must lose {surplus} heads to keep {keep}, but "
                    f"the removal order has {len(named)} of them"
                )
            chosen += named[:surplus]
    return drop_heads(full_mask(shape), chosen)
