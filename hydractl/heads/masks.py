"""Head masks: full masks, masks from a removal order, and different masks for several members."""

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
        ValueError: If a tower has no layers or no heads.
    """
    return {
        tower: TowerKeep(num_heads=size.num_heads, keep=(tuple(range(size.num_heads)),) * size.layers)
        for tower, size in shape.items()
    }


def shape_of(towers: Shape) -> dict[str, TowerShape]:
    """Return the number of layers and heads of each tower before pruning, as a `TowerShape`.

    Args:
        towers: Shapes, architectures or masks of towers. Heads removed by a mask are counted too.
    """
    return {name: TowerShape(t.layers, t.num_heads) for name, t in towers.items()}


def total_kept(mask: Mask) -> int:
    """Return the number of kept heads, summed over all towers."""
    return sum(part.num_kept for part in mask.values())


def all_heads(shape: Shape) -> tuple[HeadId, ...]:
    """Return all heads of a model, sorted by tower (in the order of `shape`), layer and head."""
    return tuple(
        HeadId(tower, layer, head)
        for tower, size in shape.items()
        for layer in range(size.layers)
        for head in range(size.num_heads)
    )


def drop_heads(mask: Mask, heads: Iterable[HeadId]) -> dict[str, TowerKeep]:
    """Return a copy of a mask that removes `heads` too. Heads that `mask` already removes have no effect."""
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


def shape_of_importance(importance: Tables) -> dict[str, TowerShape]:
    """Return the number of layers and heads of each tower from its table of head importances, shape (L, H)."""
    return {tower: TowerShape(layers=len(rows), num_heads=len(rows[0])) for tower, rows in importance.items()}


def removal_order(importance: Tables, recorded_order: Sequence[HeadId] | None = None) -> tuple[HeadId, ...]:
    """Return the heads in the order of their removal.

    The recorded order of a greedy method is returned unchanged. Otherwise heads are sorted by ascending
    importance over the whole model; ties are sorted by tower (in the order of `importance`), layer and head.
    Algorithm 1 of the Hydra paper breaks ties in the same way: it removes the first maximum.

    Args:
        importance: Head importances of each tower, shape (L, H), finite. The least important head is removed
            first.
        recorded_order: Removal order of a greedy method; it may contain only a part of the heads.
    """
    if recorded_order is not None:
        return tuple(recorded_order)
    heads = all_heads(shape_of_importance(importance))
    return tuple(sorted(heads, key=lambda head: importance[head.tower][head.layer][head.head]))


def best_mask(order: Sequence[HeadId], shape: Shape, *, removals: int) -> dict[str, TowerKeep]:
    """Return the mask that removes the first `removals` heads of an order; see `removal_order`."""
    return drop_heads(full_mask(shape), order[:removals])


def best_mask_per_layer(order: Sequence[HeadId], shape: Shape, *, keep: int) -> dict[str, TowerKeep]:
    """Return the mask that keeps the last `keep` heads of a removal order in every layer.

    Args:
        order: Heads in the order of removal. A partial order must contain enough heads of each layer.
        shape: Number of layers and heads of each tower.
        keep: Number of kept heads per layer, at most the number of heads of a layer.

    Raises:
        ValueError: If the order contains too few heads of a layer.
    """
    chosen: list[HeadId] = []
    for tower, size in shape.items():
        surplus = size.num_heads - keep
        for layer in range(size.layers):
            heads_of_layer = [head for head in order if (head.tower, head.layer) == (tower, layer)]
            if len(heads_of_layer) < surplus:
                raise ValueError(
                    f"layer {layer} of tower `{tower}` must lose {surplus} heads to keep {keep}, but "
                    f"the removal order has {len(heads_of_layer)} of them"
                )
            chosen += heads_of_layer[:surplus]
    return drop_heads(full_mask(shape), chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings for the random masks of several members.

    Attributes:
        pool: Number of removable heads at the start of a removal order, at least 0. None for all heads.
        members: Number of masks, at least 1.
        seed: Any integer. The mask of a member depends only on the seed, its index and the candidates.
        diverge_from: First layer in which members may differ, at least 0, for every tower. Earlier layers
            keep the same heads in all members.
    """

    pool: int | None = None
    members: int
    seed: int
    diverge_from: int = 0


def sample_masks(
    order: Sequence[HeadId], shape: Shape, *, removals: int, sampling: Sampling
) -> tuple[dict[str, TowerKeep], ...]:
    """Draw distinct masks, each without `removals` heads of a pool (Hydra paper, appendix B.5).

    The pool consists of the first `sampling.pool` heads of the order. Before layer `sampling.diverge_from`,
    every member removes the same heads as `best_mask`. The other heads are drawn without replacement from the
    pool's heads in the remaining layers. A draw depends on the set of candidates, the seed and the member's
    index. It does not depend on the order of the candidates, the machine or the Python version.

    Args:
        order: Heads in the order of removal; see `removal_order`.
        shape: Number of layers and heads of each tower.
        removals: Number of removed heads per member, at most the size of the pool.
        sampling: Pool, number of members, seed, and first layer in which members differ.

    Returns:
        One mask for each member. All masks differ.

    Raises:
        ValueError: If there are fewer distinct masks than members.
    """
    start = sampling.diverge_from
    trunk = [head for head in order[:removals] if head.layer < start]
    candidates = sorted(head for head in order[: sampling.pool] if head.layer >= start)
    count = removals - len(trunk)
    check_distinct_masks(len(candidates), count, members=sampling.members, start=start)
    base = drop_heads(full_mask(shape), trunk)
    return tuple(drop_heads(base, heads) for heads in _distinct_draws(candidates, count, sampling=sampling))


def check_distinct_masks(candidates: int, removals: int, *, members: int, start: int = 0) -> None:
    """Check that enough distinct masks exist.

    Args:
        candidates: Number of removable heads, in layers from `start` on.
        removals: Number of removed candidates per mask.
        members: Number of masks.
        start: First layer in which masks differ, for the error message.

    Raises:
        ValueError: If there are fewer distinct masks than members.
    """
    distinct = math.comb(candidates, removals)
    if distinct < members:
        place = f" in layers from {start} on, beside those before," if start else ""
        raise ValueError(
            f"{members} different masks are required, but removing {removals} of the {candidates} "
            f"pool heads{place} gives {distinct}"
        )


def random_masks(shape: Shape, *, removals: int, sampling: Sampling) -> tuple[dict[str, TowerKeep], ...]:
    """Draw distinct masks without `removals` random heads, a control for head importances.

    Every subset of heads is equally likely. Before layer `sampling.diverge_from`, all masks are equal.

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
    """Draw distinct masks with `keep` random heads in every layer.

    They are a control for head importances compared within each layer.

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
            mask = share_first_layers([masks[0] if masks else random_mask, random_mask], start)[1]
            if mask not in masks:
                masks.append(mask)
    return tuple(masks)


def _distinct_draws(
    candidates: Sequence[HeadId], count: int, *, sampling: Sampling
) -> list[tuple[HeadId, ...]]:
    """Draw `count` sorted candidates for each member; repeat the draw if an earlier member has the same."""
    draws: list[tuple[HeadId, ...]] = []
    for member in range(sampling.members):
        # A string seed distinguishes (seed 0, member 1) from (seed 1, member 0); `random` hashes strings with
        # SHA-512, independent of PYTHONHASHSEED.
        source = random.Random(f"{sampling.seed}-{member}")  # noqa: S311 - reproducible, not secret
        while len(draws) == member:
            draw = tuple(sorted(_shuffled(candidates, source=source)[:count]))
            if draw not in draws:
                draws.append(draw)
    return draws


def _shuffled(heads: Sequence[HeadId], *, source: random.Random) -> list[HeadId]:
    # Python guarantees the same sequence of `random()` in all versions, but not the same result of `sample()`
    # or `shuffle()`.
    return sorted(heads, key=lambda _: source.random())


def share_first_layers(masks: Sequence[Mask], layer: int) -> tuple[dict[str, TowerKeep], ...]:
    """Replace every layer before `layer` by the first mask's layer.

    The number of heads that a member removes may change.

    Args:
        masks: Masks of the members, with the same shape.
        layer: First layer that is not replaced, at least 0, for every tower.
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
    importance: Tables,
    *,
    members: int,
    diverge_from: int = 0,
) -> tuple[dict[str, TowerKeep], ...]:
    """Let member j keep the j-th best head of each cluster: members complement each other.

    A cluster with too few heads gives its best head again. Before layer `diverge_from`, every member keeps
    the heads of member 0; then a member may have no head of a cluster, or two. Finally the most important
    head of each layer without heads is restored, as in CAHP; the lowest head wins ties. Members may therefore
    keep different numbers of heads.

    Args:
        clusters: Heads of each cluster, best first. No head occurs twice.
        importance: Head importances of each tower, shape (L, H). They select the head for an empty layer.
        members: Number of masks, at least 1.
        diverge_from: First layer in which members may differ, at least 0.

    Returns:
        One mask for each member, with the towers of `importance`. All masks differ.

    Raises:
        ValueError: If two members would keep the same heads.
    """
    shape = shape_of_importance(importance)
    chosen = [representatives(clusters, member, shape) for member in range(members)]
    masks = tuple(refill_empty_layers(mask, importance) for mask in share_first_layers(chosen, diverge_from))
    for member, mask in enumerate(masks):
        if mask in masks[:member]:
            raise ValueError(
                f"members {masks.index(mask)} and {member} would keep the same heads: the largest of "
                f"{len(clusters)} clusters has {max(map(len, clusters))} heads"
            )
    return masks


def representatives(clusters: Sequence[Sequence[HeadId]], member: int, shape: Shape) -> dict[str, TowerKeep]:
    """Return the mask with the `member`-th best head of each cluster.

    A cluster with fewer heads keeps its best head.

    Args:
        clusters: Heads of each cluster, best first.
        member: Index of the member (0-based).
        shape: Number of layers and heads of each tower.
    """
    heads = {cluster[member] if member < len(cluster) else cluster[0] for cluster in clusters}
    return drop_heads(full_mask(shape), set(all_heads(shape)) - heads)


def refill_empty_layers(mask: Mask, importance: Tables) -> dict[str, TowerKeep]:
    """Restore the most important head of each empty layer. The lowest head wins ties.

    Args:
        mask: Mask of each tower; not changed.
        importance: Head importances of each tower of the mask, shape (L, H), finite.
    """
    return {
        tower: TowerKeep(
            num_heads=part.num_heads,
            keep=tuple(
                kept_heads or (max(range(part.num_heads), key=lambda h, row=row: (row[h], -h)),)  # type: ignore[misc]
                for kept_heads, row in zip(part.keep, importance[tower], strict=True)
            ),
        )
        for tower, part in mask.items()
    }


def eligible_candidates(values: Sequence[float], members: int) -> tuple[int, ...]:
    """Return the sorted indices of all candidates with at least the median objective.

    For an even number of candidates, the median is the lower of the two middle values. If these are fewer
    than `members`, the next best candidates are added; the lowest index wins ties. This happens only with
    fewer than 2 `members` - 2 candidates.

    Args:
        values: Objective of each candidate; higher is better.
        members: Number of candidates that will be chosen, at most all.
    """
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))
    count = max(members, sum(value >= statistics.median_low(values) for value in values))
    return tuple(sorted(ranked[:count]))


def choose_diverse(
    values: Sequence[float], diversity: Callable[[tuple[int, ...]], float], *, members: int
) -> tuple[int, ...]:
    """Choose candidates greedily: the best first, then the candidate with the largest gain in diversity.

    Only candidates returned by `eligible_candidates` are chosen. The lowest index wins ties. The greedy choice is not
    always the most diverse set.

    Args:
        values: Objective of each candidate; higher is better.
        diversity: Returns the diversity of a set of candidates, given their indices in the order of their
            choice.
        members: Number of candidates to choose, in [1, number of candidates].

    Returns:
        Indices of the chosen candidates, in the order of their choice.
    """
    candidates = list(eligible_candidates(values, members))
    chosen: tuple[int, ...] = ()
    while len(chosen) < members:
        gains = [diversity((*chosen, i)) if chosen else values[i] for i in candidates]
        chosen = (*chosen, candidates.pop(max(range(len(candidates)), key=lambda i: (gains[i], -i))))
    return chosen
