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
    """Return a mask without some more heads; `mask` is unchanged."""
    removed = set(heads)
    return {
        tower: TowerKeep(
            num_heads=part.num_heads,
            keep=tuple(
                tuple(head for head in kept_heads if (tower, layer, head) not in removed)
                for layer, kept_heads in enumerate(part.keep)
            ),
        )
        for tower, part in mask.items()
    }


def shape_of_scores(scores: Tables) -> dict[str, TowerShape]:
    """Return the shape of the model that L x H scores of each tower belong to."""
    return {tower: TowerShape(layers=len(rows), num_heads=len(rows[0])) for tower, rows in scores.items()}


def removal_order(scores: Tables, recorded: Sequence[HeadId] | None = None) -> tuple[HeadId, ...]:
    """Return heads in the order in which they are removed.

    A recorded greedy order is returned as it is. Otherwise heads are sorted by ascending score over the whole model. Of equal scores the
    lower (tower as ordered in `scores`, layer, head) is removed first, which is also the first maximum that Algorithm 1 of the Hydra
    paper meets.

    Args:
        scores: L x H importances of each tower, finite; heads with higher importances are kept.
        recorded: Heads that a greedy method removed, in order; the method may have stopped before all heads were removed.
    """
    if recorded is not None:
        return tuple(recorded)
    heads = all_heads(shape_of_scores(scores))
    return tuple(sorted(heads, key=lambda head: scores[head.tower][head.layer][head.head]))


def best_mask(order: Sequence[HeadId], shape: Shape, *, removals: int) -> dict[str, TowerKeep]:
    """Return the mask without the first `removals` heads of an order; see `removal_order`."""
    return drop_heads(full_mask(shape), order[:removals])


def best_mask_per_layer(order: Sequence[HeadId], shape: Shape, *, keep: int) -> dict[str, TowerKeep]:
    """Return the mask that keeps equally many heads in every layer: in each, the last ones of an order.

    Args:
        order: Heads in the order of removal. An order that stops early must still contain enough heads of each layer.
        shape: The model's shape.
        keep: Number of heads that every layer keeps, at most the number that it has.

    Raises:
        ValueError: If the order contains too few heads of a layer.
    """
    chosen: list[HeadId] = []
    for tower, size in shape.items():
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
    """

    pool: int | None = None
    members: int
    seed: int
    diverge_from: int = 0


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
        removals: Number of heads that each member removes, at most the size of the pool.
        sampling: Pool, members, seed and where members begin to differ.

    Returns:
        One mask a member, all different.

    Raises:
        ValueError: If there are fewer distinct masks than members.
    """
    start = sampling.diverge_from
    trunk = [head for head in order[:removals] if head.layer < start]
    candidates = sorted(head for head in order[: sampling.pool] if head.layer >= start)
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
    """Draw distinct masks that each remove `removals` random heads: the control for all scores.

    Every subset is equally likely, as with random scores. Layers before `diverge_from` are those of one random mask.

    Raises:
        ValueError: If there are fewer distinct masks than members.
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
        ValueError: If there are fewer distinct masks than members.
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
    """
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
        ValueError: If two members keep the same heads.
    """
    shape = shape_of_scores(scores)
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
        members: Number of candidates that will be chosen, at most all.
    """
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
    """
    candidates = list(eligible(values, members))
    chosen: tuple[int, ...] = ()
    while len(chosen) < members:
        gains = [diversity((*chosen, i)) if chosen else values[i] for i in candidates]
        chosen = (*chosen, candidates.pop(max(range(len(candidates)), key=lambda i: (gains[i], -i))))
    return chosen
