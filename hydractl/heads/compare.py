"""How different are two choices of heads? Removed heads in common, depths removed from, ranks of scores."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from scipy import stats

from hydractl.heads.budget import total_heads
from hydractl.heads.masks import all_heads, dropped, shape_of, shape_of_scores
from hydractl.manifest.head_mask import HeadId, Mask, Tables


def overlap(first: Mask, second: Mask) -> float:
    """Return the share of removed heads that two masks have in common, in [0, 1].

    Common heads over the smaller of both counts (Szymkiewicz-Simpson). The Hydra paper gives 25 % and 29 % for
    Taylor and circuits (appendix B.2): of removed heads, since any two choices of 8 heads out of 12 have half of
    them in common. Two masks that remove nothing give 1; if only one does, 0.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    first_dropped, second_dropped = _dropped_sets(first, second)
    fewer = min(len(first_dropped), len(second_dropped))
    return len(first_dropped & second_dropped) / fewer if fewer else float(first_dropped == second_dropped)


def chance_overlap(first: Mask, second: Mask) -> float:
    """Return the overlap to expect of two random choices that remove as many heads as these masks, in [0, 1].

    A head is in both with probability |A| |B| / N², so the mean is the larger count over all N heads. Where one
    of the masks removes nothing it is what `overlap` gives.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    first_dropped, second_dropped = _dropped_sets(first, second)
    if not first_dropped or not second_dropped:
        return float(first_dropped == second_dropped)
    return max(len(first_dropped), len(second_dropped)) / total_heads(first)


def jaccard(first: Mask, second: Mask) -> float:
    """Return the heads that both masks remove over those that either removes, in [0, 1].

    Jaccard (1912). Two masks that remove nothing give 1.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    first_dropped, second_dropped = _dropped_sets(first, second)
    either = len(first_dropped | second_dropped)
    return len(first_dropped & second_dropped) / either if either else 1.0


def jensen_shannon(first: Mask, second: Mask) -> float | None:
    """Return the Jensen-Shannon divergence between the layers from which two masks remove, in [0, ln 2] nats.

    The distributions are the shares of a mask's removed heads that lie in each layer of each tower; Lin (1991),
    eq. 4.1, with equal weights: the divergence itself, natural logarithm, not its square root. Zero means the same
    depth profile, not the same heads. The Hydra paper's 0.37 states neither base nor root.

    Returns:
        None where one mask removes nothing and so has no distribution.

    Raises:
        ValueError: If the masks belong to models of different shapes.
    """
    first_dropped, second_dropped = _dropped_sets(first, second)
    if not first_dropped or not second_dropped:
        return None
    terms = []
    for tower, part in first.items():
        for ours, theirs in zip(part.drop, second[tower].drop, strict=True):
            p, q = len(ours) / len(first_dropped), len(theirs) / len(second_dropped)
            terms += [_half_term(p, q), _half_term(q, p)]
    return max(0.0, math.fsum(terms))


def spearman(first: Tables, second: Tables) -> float | None:
    """Return the rank correlation of two tables of scores over all heads of all towers, in [-1, 1].

    Spearman's rho: Pearson's correlation of the ranks, equal scores sharing their mean rank.

    Args:
        first: For each tower L x H scores, finite.
        second: Of the same shape.

    Returns:
        None where all scores of one of them are equal, so that it ranks nothing.

    Raises:
        ValueError: If the tables are of different shapes.
    """
    return _correlated(first, second, lambda x, y: stats.spearmanr(stats.rankdata(x), stats.rankdata(y)))


def kendall(first: Tables, second: Tables) -> float | None:
    """Return Kendall's tau-b of two tables of scores over all heads of all towers, in [-1, 1].

    Pairs of heads ranked alike less those ranked oppositely, over all pairs but for those that tie; Kendall (1945).

    Args:
        first: For each tower L x H scores, finite.
        second: Of the same shape.

    Returns:
        None where all scores of one of them are equal, so that it ranks nothing.

    Raises:
        ValueError: If the tables are of different shapes.
    """
    return _correlated(first, second, lambda x, y: stats.kendalltau(x, y, variant="b"))


def standing(scores: Tables) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return for each head the share of all heads of all towers that score no higher, in (0, 1].

    The most important head has 1, and so have all that tie with it.
    """
    every = sorted(value for rows in scores.values() for row in rows for value in row)
    return {
        tower: tuple(tuple(bisect_right(every, value) / len(every) for value in row) for row in rows)
        for tower, rows in scores.items()
    }


def _correlated(
    first: Tables, second: Tables, test: Callable[[list[float], list[float]], Any]
) -> float | None:
    """Return the statistic of one of scipy's tests on both tables' scores, None where one of them ranks nothing."""
    first_scores, second_scores = _flat(first, second)
    if len(set(first_scores)) < 2 or len(set(second_scores)) < 2:
        return None
    return max(-1.0, min(1.0, float(test(first_scores, second_scores).statistic)))  # rounding may go beyond


def _flat(first: Tables, second: Tables) -> tuple[list[float], list[float]]:
    """Return both tables' scores, head by head in the first one's order."""
    shape, second_shape = shape_of_scores(first), shape_of_scores(second)
    if shape != second_shape:
        raise ValueError(f"scores belong to different models: {shape} and {second_shape}")
    heads = all_heads(shape)
    first_scores, second_scores = (
        [float(table[h.tower][h.layer][h.head]) for h in heads] for table in (first, second)
    )
    return first_scores, second_scores


def _half_term(p: float, q: float) -> float:
    """Return p/2 ln(p / mean(p, q)), 0 at p = 0."""
    return 0.5 * p * math.log(2 * p / (p + q)) if p else 0.0


def _dropped_sets(first: Mask, second: Mask) -> tuple[set[HeadId], set[HeadId]]:
    if shape_of(first) != shape_of(second):
        raise ValueError(f"masks belong to different models: {shape_of(first)} and {shape_of(second)}")
    return set(dropped(first)), set(dropped(second))
