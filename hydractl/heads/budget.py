"""How many heads go: by a stated budget, or by the knee of a greedy search's curve. Importing this module loads no pydantic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import Shape


COMMON_KEEP_FRACTION = 2 / 3  # the paper's ImageNet members keep 8 of 12 heads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBudget:
    """How many heads go. Exactly one of the three numbers is given.

    Attributes:
        keep_per_layer: Heads that a layer keeps, on average over all layers of all towers, at least 0.
        remove: Heads that go in all, at least 0.
        keep_fraction: Share of heads that stay in all, in (0, 1].
        per_layer: With `keep_per_layer`, every layer keeps exactly so many.
        whole_groups: Whether heads that share keys are removed together.

    Raises:
        ValueError: If not exactly one is given, one is out of its range, or `per_layer` has nothing to fix.
    """

    keep_per_layer: int | None = None
    remove: int | None = None
    keep_fraction: float | None = None
    per_layer: bool = False
    whole_groups: bool = False

    def __post_init__(self) -> None:
        stated = [
            name for name in ("keep_per_layer", "remove", "keep_fraction") if getattr(self, name) is not None
        ]
        if len(stated) != 1:
            raise ValueError(
                f"a budget needs exactly one of keep_per_layer, remove, keep_fraction, got {stated or 'none'}"
            )
        if self.per_layer and self.keep_per_layer is None:
            raise ValueError(f"per_layer needs keep_per_layer, not {stated[0]}")
        for name in ("keep_per_layer", "remove"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.keep_fraction is not None and not 0 < self.keep_fraction <= 1:
            raise ValueError(f"keep_fraction must be in (0, 1], got {self.keep_fraction}")

    @property
    def option_text(self) -> str:
        """The option that gives this budget, for messages."""
        if self.keep_per_layer is not None:
            return f"--keep {self.keep_per_layer}{' --per-layer' if self.per_layer else ''}"
        return f"--keep-fraction {self.keep_fraction:g}" if self.remove is None else f"--remove {self.remove}"

    def removals(self, towers: Shape) -> int:
        """Return how many heads go in all, over all towers.

        Removing all heads of a layer, or of the model, is allowed. `keep_fraction` F removes
        floor(total (1 - F) + 1/2) heads, F taken as the decimal it was written as, so halves round towards
        removing more on every machine.

        Args:
            towers: The model's shape.

        Raises:
            ValueError: If there are fewer heads than the budget removes or keeps.
        """
        total = total_heads(towers)
        if self.remove is not None:
            if self.remove > total:
                raise ValueError(f"cannot remove {self.remove} heads: the model has {total}")
            return self.remove
        if self.keep_fraction is not None:
            return math.floor(total * (1 - Fraction(str(self.keep_fraction))) + Fraction(1, 2))
        keep, layers = self.keep_per_layer or 0, sum(size.layers for size in towers.values())
        if keep * layers > total:
            raise ValueError(
                f"cannot keep {keep} heads per layer on average: {layers} layers have {total} heads, not {keep * layers}"
            )
        for tower, size in towers.items():
            if self.per_layer and keep > size.num_heads:
                raise ValueError(
                    f"cannot keep {keep} heads per layer: layers of tower `{tower}` have {size.num_heads}"
                )
        return total - keep * layers

    def kept_a_layer(self, towers: Shape) -> int:
        """Return how many heads stay of each layer where all keep equally many: as near the budget as that goes.

        The mean number of heads that a layer keeps, rounded; a half goes to the even number.

        Args:
            towers: The model's shape.

        Raises:
            ValueError: As `removals`.
        """
        layers = sum(size.layers for size in towers.values())
        return round(Fraction(total_heads(towers) - self.removals(towers), layers))


def total_heads(shape: Shape) -> int:
    """Return how many heads all towers have together."""
    return sum(size.layers * size.num_heads for size in shape.values())


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
    """
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
        majorant += [*(low + (high - low) * (i / steps) for i in range(1, steps)), float(high)]
    return majorant


def _turns_down(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    """Return whether b lies above the straight line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) > (c[1] - a[1]) * (b[0] - a[0])


def _knee(values: Sequence[float]) -> int | None:
    """Return the knee of a concave decreasing curve."""
    from kneed import KneeLocator  # noqa: PLC0415 - loads matplotlib

    knee = KneeLocator(range(len(values)), values, S=1.0, curve="concave", direction="decreasing").knee
    return None if knee is None else int(knee)
