"""Masks of heads: whole and smaller ones, by a removal order, and those of several members that differ."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw the masks of several members.

    Attributes:
        pool: The first so many heads of a removal order may go, at least 0; None for all of them.
        members: How many masks, at least 1.
        seed: Any integer; member m of seed s is always the same draw.
        diverge_from: Members remove the same heads in all layers before this one, in every tower; at least 0.

    Raises:
        ValueError: If a number is out of its range.
    """

    pool: int | None = None
    members: int
    seed: int
    diverge_from: int = 0

    def __post_init__(self) -> None:
        for name, low in (("pool", 0), ("members", 1), ("diverge_from", 0)):
            if (getattr(self, name) or 0) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")


def sample_masks(
    order: Sequence[HeadId], shape: Shape, *, removals: int, sampling: Sampling
) -> tuple[dict[str, TowerKeep], ...]:
    """Draw distinct masks that each remove `removals` heads out of a pool (Hydra paper, appendix B.5).

    The pool is the first `sampling.pool` heads of the order. Before layer `sampling.diverge_from` every member
    removes what `best_mask` removes there; the rest is drawn without replacement from the pool's heads in the
    layers from there on. The draw depends on the set of candidates, the seed and the member's index alone, not
    on their order, the machine or the Python version.

    Args:
        order: First to go first, as `removal_order` gives it.
        shape: The model's shape.
        removals: How many heads each member removes, at least 0.
        sampling: Pool, members, seed and where members begin to differ.

    Returns:
        One mask a member, all different.

    Raises:
        ValueError: If the order is shorter than the pool, the pool smaller than `removals`, or there are fewer
            distinct masks than members.
    """
    pool = len(order) if sampling.pool is None else sampling.pool
    if pool > len(order):
        raise ValueError(f"cannot draw from a pool of {pool} heads: the removal order has {len(order)}")
    if not 0 <= removals <= pool:
        raise ValueError(f"cannot remove {removals} heads out of a pool of {pool}")
    check_order(order, shape)
    start = sampling.diverge_from
    trunk = [head for head in order[:removals] if head.layer < start]
    candidates = sorted(head for head in order[:pool] if head.layer >= start)
    count = removals - len(trunk)
    check_enough(len(candidates), count, members=sampling.members, start=start)
    base = drop_heads(full_mask(shape), trunk)
    return tuple(drop_heads(base, heads) for heads in _distinct_draws(candidates, count, sampling=sampling))


def check_enough(candidates: int, removals: int, *, members: int, start: int = 0) -> None:
    """Refuse to draw more masks than are distinct.

    Args:
        candidates: Heads that may go, in layers from `start` on.
        removals: How many of them each mask removes.
        members: How many masks.
        start: For the message.

    Raises:
        ValueError: If there are not so many.
    """
    distinct = math.comb(candidates, removals)
    if distinct < members:
        where = f" in layers from {start} on, beside those before," if start else ""
        raise ValueError(
            f"{members} different masks are required, but removing {removals} of the {candidates} "
            f"pool heads{where} gives {distinct}"
        )


def random_masks(shape: Shape, *, removals: int, sampling: Sampling) -> tuple[dict[str, TowerKeep], ...]:
    """Draw distinct masks that each remove `removals` heads, whatever they are good for: the control for all scores.

    Every subset is equally likely, as with random scores. Layers before `diverge_from` are those of one random mask.

    Raises:
        ValueError: If there are fewer heads than `removals`, or fewer distinct masks than members.
    """
    source = random.Random(f"random-{sampling.seed}")  # noqa: S311 - reproducible, not secret
    return sample_masks(
        _shuffled(sorted(all_heads(shape)), source=source), shape, removals=removals, sampling=sampling
    )


def random_masks_per_layer(
    shape: Shape, *, keep: int, sampling: Sampling
) -> tuple[dict[str, TowerKeep], ...]:
    """Draw distinct masks that each keep `keep` heads in every layer: the control for scores taken layer by layer.

    Raises:
        ValueError: If a layer has fewer heads than `keep`, or there are fewer distinct masks than members.
    """
    members, start = sampling.members, sampling.diverge_from
    distinct = math.prod(
        math.comb(size.num_heads, keep) ** max(0, size.layers - start) for size in shape.values()
    )
    if distinct < members:
        raise ValueError(
            f"{members} different masks are required, but keeping {keep} heads of each layer from "
            f"{start} on gives {distinct}"
        )
    masks: list[dict[str, TowerKeep]] = []
    for member in range(members):
        source = random.Random(f"layers-{sampling.seed}-{member}")  # noqa: S311 - as above
        while len(masks) == member:
            order = _shuffled(sorted(all_heads(shape)), source=source)
            random_mask = best_mask_per_layer(order, shape, keep=keep)
            mask = share_before([masks[0] if masks else random_mask, random_mask], start)[1]
            if mask not in masks:
                masks.append(mask)
    return tuple(masks)


def _distinct_draws(
    candidates: Sequence[HeadId], count: int, *, sampling: Sampling
) -> list[tuple[HeadId, ...]]:
    """Return for each member `count` candidates, sorted; a draw that an earlier member has is drawn again."""
    draws: list[tuple[HeadId, ...]] = []
    for member in range(sampling.members):
        source = random.Random(f"{sampling.seed}-{member}")  # noqa: S311 - reproducible, not secret
        while len(draws) == member:
            draw = tuple(sorted(_shuffled(candidates, source=source)[:count]))
            if draw not in draws:
                draws.append(draw)
    return draws


def _shuffled(heads: Sequence[HeadId], *, source: random.Random) -> list[HeadId]:
    """Return heads in an order that is drawn, every order being equally likely."""
    # Python keeps the sequence of `random()` across versions, but not the algorithm of `sample()`.
    return sorted(heads, key=lambda _: source.random())


def share_before(masks: Sequence[Mask], layer: int) -> tuple[dict[str, TowerKeep], ...]:
    """Return the masks with every layer before one replaced by that of the first mask.

    The number of heads that a member removes may change by this.

    Args:
        masks: One a member, of one shape.
        layer: Layers before this one are replaced, in every tower; at least 0.

    Raises:
        ValueError: If the masks are of different shapes, or `layer` is negative.
    """
    if layer < 0:
        raise ValueError(f"layer must be at least 0, got {layer}")
    for member, mask in enumerate(masks):
        if shape_of(mask) != shape_of(masks[0]):
            raise ValueError(
                f"member {member} has a mask for {shape_of(mask)}, but member 0 for {shape_of(masks[0])}"
            )
    return tuple(
        {
            tower: TowerKeep(num_heads=part.num_heads, keep=masks[0][tower].keep[:layer] + part.keep[layer:])
            for tower, part in mask.items()
        }
        for mask in masks
    )


def cluster_masks(
    clusters: Sequence[Sequence[HeadId]],
    scores: Tables,
    *,
    members: int,
    diverge_from: int = 0,
) -> tuple[dict[str, TowerKeep], ...]:
    """Let member j keep the j-th best head of each cluster: members that complement each other by construction.

    A cluster with fewer heads gives its best one again. Before layer `diverge_from` every member keeps what member 0
    keeps there, so that a cluster may be left without a head or with two. Then a layer without heads gets its
    highest-scored one back, of equal scores the lowest (CAHP, the step after choosing representatives); so members may
    keep different numbers of heads.

    Args:
        clusters: Each one's heads, best first; no head twice.
        scores: For each tower L x H scores, which the guard of empty layers goes by.
        members: How many masks, at least 1.
        diverge_from: Members agree in all layers before this one, at least 0.

    Returns:
        One mask a member, all different, of the towers that have scores.

    Raises:
        ValueError: If a cluster is empty or has a head that the scores lack or that comes twice, or two members keep
            the same heads.
    """
    shape = shape_of_scores(scores)
    check_order([head for cluster in clusters for head in cluster], shape)
    if not all(clusters):
        raise ValueError("a cluster has no head")
    chosen = [representatives(clusters, member, shape) for member in range(members)]
    masks = tuple(keep_every_layer(mask, scores) for mask in share_before(chosen, diverge_from))
    for member, mask in enumerate(masks):
        if mask in masks[:member]:
            raise ValueError(
                f"members {masks.index(mask)} and {member} would keep the same heads: the largest of "
                f"{len(clusters)} clusters has {max(map(len, clusters))} heads"
            )
    return masks


def representatives(clusters: Sequence[Sequence[HeadId]], member: int, shape: Shape) -> dict[str, TowerKeep]:
    """Return the mask of one head a cluster: its `member`-th best, or its best where it has fewer.

    Args:
        clusters: Each one's heads, best first.
        member: Counted from 0.
        shape: The model's shape.
    """
    heads = {cluster[member] if member < len(cluster) else cluster[0] for cluster in clusters}
    return drop_heads(full_mask(shape), set(all_heads(shape)) - heads)


def keep_every_layer(mask: Mask, scores: Tables) -> dict[str, TowerKeep]:
    """Give each layer without heads its highest-scored one back; of equal scores the lowest.

    Args:
        mask: Unchanged.
        scores: L x H for each tower of the mask, finite.
    """
    return {
        tower: TowerKeep(
            num_heads=part.num_heads,
            keep=tuple(
                kept_heads or (max(range(part.num_heads), key=lambda h, row=row: (row[h], -h)),)  # type: ignore[misc]
                for kept_heads, row in zip(part.keep, scores[tower], strict=True)
            ),
        )
        for tower, part in mask.items()
    }


def eligible(values: Sequence[float], members: int) -> tuple[int, ...]:
    """Return the candidates that are no worse than the median one, increasing.

    The median candidate is the lower of the middle two where their number is even. If fewer than `members` are as good,
    which takes fewer than 2 `members` - 1 candidates, the next best join them, of equals the lowest.

    Args:
        values: Each candidate's objective, higher is better.
        members: How many will be chosen, 1 <= members <= number of candidates.

    Raises:
        ValueError: If `members` is out of range.
    """
    if not 1 <= members <= len(values):
        raise ValueError(f"cannot choose {members} of {len(values)} candidates")
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))
    count = max(members, sum(value >= statistics.median_low(values) for value in values))
    return tuple(sorted(ranked[:count]))


def choose_diverse(
    values: Sequence[float], diversity: Callable[[tuple[int, ...]], float], *, members: int
) -> tuple[int, ...]:
    """Choose candidates greedily: the best one, then each time the one that makes the set most diverse.

    Only `eligible` candidates are chosen from. Of equals the lowest is taken. Greedy choice need not find the most
    diverse set of all.

    Args:
        values: Each candidate's objective, higher is better.
        diversity: Of a set of candidates, in the order of their choice.
        members: How many to choose, 1 <= members <= number of candidates.

    Returns:
        The chosen candidates, in the order of their choice.

    Raises:
        ValueError: If `members` is out of range.
    """
    candidates = list(eligible(values, members))
    chosen: tuple[int, ...] = ()
    while len(chosen) < members:
        gains = [diversity((*chosen, i)) if chosen else values[i] for i in candidates]
        chosen = (*chosen, candidates.pop(max(range(len(candidates)), key=lambda i: (gains[i], -i))))
    return chosen
