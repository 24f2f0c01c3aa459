"""Which of many candidates make a diverse set, at a quality that all of them share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


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
    median = statistics.median_low(values)
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))
    count = max(members, sum(value >= median for value in values))
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
