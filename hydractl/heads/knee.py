"""How many heads can go before the objective falls off: the knee of a greedy run's curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class KneeResult(NamedTuple):
    """Where a curve of objectives falls off.

    Attributes:
        best: Removals at the last maximum: no other number of removals, and no higher one, is as good.
        fell: Whether the curve ends lower than it began, which is what makes the end of it a fall.
        knee: Removals at the knee; None where the curve did not fall, or falls without one.
    """

    best: int
    fell: bool
    knee: int | None


def fall_off(curve: Sequence[float]) -> KneeResult:
    """Find the knee of the objective over the number of removed heads.

    A greedy search removes harmful heads first, so the curve rises, stays, and falls at last. If it rises at all, it is
    cut after the first removal from which on it stays below where it began: what comes then says how the model dies,
    not how many heads can go, and the knee must not depend on how far the run went. What is below the maximum before it
    is lifted to it, and of the whole the least concave majorant is taken: what a noisy curve would be if it only fell,
    and ever faster. Dips that recover lie below it, and its corners are points of the curve. The knee is Kneedle's
    (Satopää et al. 2011, section III) for a concave decreasing curve with sensitivity 1: the point farthest above the
    chord from no removal to the last one, both axes scaled to [0, 1]. Of points equally far the one with fewer removals
    counts, up to rounding.

    So the knee is never before `best`, and a curve that rises is at its knee no lower than at its beginning. That of a
    curve that only falls depends on where the run ended.

    Args:
        curve: The objective after 0, 1, ..., R removals, higher is better, finite, at least one value.

    Raises:
        ValueError: If the curve is empty or not finite.
    """
    if not curve or not all(math.isfinite(value) for value in curve):
        raise ValueError("a curve needs at least one value, all of them finite")
    best = max(range(len(curve)), key=lambda i: (curve[i], i))
    fell = curve[-1] < curve[0]
    rose = curve[best] > curve[0]
    last_above = max(i for i, value in enumerate(curve) if value >= curve[0]) if rose else len(curve)
    lifted = [curve[best]] * best + list(curve[best : last_above + 2])
    return KneeResult(best, fell, _knee(concave_majorant(lifted)) if fell else None)


def concave_majorant(values: Sequence[float]) -> list[float]:
    """Return the least concave function on 0, 1, ... that is nowhere below some values, at the same places.

    Args:
        values: Finite, at least one.
    """
    corners: list[tuple[int, float]] = []
    for point in enumerate(values):
        while len(corners) > 1 and not _turns_down(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    majorant = [float(values[0])]
    for (left, low), (right, high) in pairwise(corners):
        steps = right - left
        majorant += [low + (high - low) * (i / steps) for i in range(1, steps)] + [float(high)]
    return majorant


def _turns_down(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    """Return whether b lies above the straight line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) > (c[1] - a[1]) * (b[0] - a[0])


def _knee(values: Sequence[float]) -> int | None:
    """Return the knee of a concave decreasing curve."""
    from kneed import KneeLocator  # noqa: PLC0415 - loads matplotlib

    places = range(len(values))
    knee = KneeLocator(places, values, S=1.0, curve="concave", direction="decreasing").knee
    return None if knee is None else int(knee)
