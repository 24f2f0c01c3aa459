"""How different are two masks? Shares of removed heads in common, and where in depth they were removed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hydractl.heads.masks import dropped, shape_of

if TYPE_CHECKING:
    from hydractl.heads.masks import Mask


def overlap(first: Mask, second: Mask) -> float:
    """Return the share of removed heads that two masks have in common, in [0, 1].

    Twice the common heads over the sum of both counts (Dice), which is common / R when both remove R, as the
    Hydra paper counts in its comparison of Taylor and circuits. Two masks that remove nothing give 1.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    mine, other = _dropped_sets(first, second)
    removed = len(mine) + len(other)
    return 2 * len(mine & other) / removed if removed else 1.0


def jaccard(first: Mask, second: Mask) -> float:
    """Return the heads that both masks remove over those that either removes, in [0, 1].

    Jaccard (1912). Two masks that remove nothing give 1.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    mine, other = _dropped_sets(first, second)
    either = len(mine | other)
    return len(mine & other) / either if either else 1.0


def jensen_shannon(first: Mask, second: Mask) -> float:
    """Return the Jensen-Shannon divergence between the layers from which two masks remove, in [0, ln 2] nats.

    The distributions are the shares of a mask's removed heads that lie in each layer of each tower; Lin (1991),
    eq. 4.1, with equal weights. Zero means the same depth profile, not the same heads.

    Raises:
        ValueError: If the masks belong to models of different shapes, or one of them removes nothing and so
            has no distribution.
    """
    mine, other = _dropped_sets(first, second)
    if not mine or not other:
        raise ValueError(
            f"both masks must remove heads to be compared by layer, got {len(mine)} and {len(other)}"
        )
    terms = []
    for tower, part in first.items():
        for ours, theirs in zip(part.drop, second[tower].drop, strict=True):
            p, q = len(ours) / len(mine), len(theirs) / len(other)
            terms += [_half_term(p, q), _half_term(q, p)]
    return max(0.0, math.fsum(terms))


def _half_term(p: float, q: float) -> float:
    """Return p/2 ln(p / mean(p, q)), 0 at p = 0."""
    return 0.5 * p * math.log(2 * p / (p + q)) if p else 0.0


def _dropped_sets(first: Mask, second: Mask) -> tuple[set[tuple[str, int, int]], set[tuple[str, int, int]]]:
    if shape_of(first) != shape_of(second):
        raise ValueError(f"masks belong to different models: {shape_of(first)} and {shape_of(second)}")
    return set(dropped(first)), set(dropped(second))
