"""Number of heads to remove: from a given budget, or from the knee of a greedy search's curve.

Importing this module does not load pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import Shape


COMMON_KEEP_FRACTION = 2 / 3  # The ImageNet members of the Hydra paper keep 8 of 12 heads.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBudget:
    """Number of heads to remove. Exactly one of the first three attributes is given.

    Attributes:
        keep_per_layer: Mean number of kept heads per layer, over all towers, at least 0.
        remove: Number of heads to remove from the whole model, at least 0.
        keep_fraction: Fraction of all heads to keep, in (0, 1].
        per_layer: Whether every layer keeps exactly `keep_per_layer` heads.
        whole_groups: Whether heads that share keys are removed together.

    Raises:
        ValueError: If not exactly one number is given, a number is out of range, or `per_layer` is used
            without `keep_per_layer`.
    """

    keep_per_layer: int | None = None
    remove: int | None = None
    keep_fraction: float | None = None
    per_layer: bool = False
    whole_groups: bool = False

    def __post_init__(self) -> None:
        given_options = [
            name for name in ("keep_per_layer", "remove", "keep_fraction") if getattr(self, name) is not None
        ]
        if len(given_options) != 1:
            raise ValueError(
                f"a budget needs exactly one of keep_per_layer, remove, keep_fraction, got {given_options or 'none'}"
            )
        if self.per_layer and self.keep_per_layer is None:
            raise ValueError(f"per_layer needs keep_per_layer, not {given_options[0]}")
        for name in ("keep_per_layer", "remove"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.keep_fraction is not None and not 0 < self.keep_fraction <= 1:
            raise ValueError(f"keep_fraction must be in (0, 1], got {self.keep_fraction}")

    @property
    def option_text(self) -> str:
        """Command-line option that gives this budget, for messages, like `--keep-heads 8 --per-layer`."""
        if self.keep_per_layer is not None:
            return f"--keep-heads {self.keep_per_layer}{' --per-layer' if self.per_layer else ''}"
        return f"--keep-fraction {self.keep_fraction:g}" if self.remove is None else f"--remove {self.remove}"

    def removals(self, towers: Shape) -> int:
        """Return the number of heads to remove, summed over all towers.

        A budget may remove all heads of a layer or of the model. `keep_fraction` F removes floor(total (1 -
        F) + 1/2) heads. F is read from its decimal text (0.9 is exactly 9/10), so halves round towards more
        removals on every machine.

        Args:
            towers: Number of layers and heads of each tower.

        Raises:
            ValueError: If the model has fewer heads than the budget removes or keeps.
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

    def mean_kept_per_layer(self, towers: Shape) -> int:
        """Return the mean number of kept heads per layer, rounded to an integer (halves to even).

        Args:
            towers: Number of layers and heads of each tower.

        Raises:
            ValueError: If the model has fewer heads than the budget removes or keeps.
        """
        layers = sum(size.layers for size in towers.values())
        return round(Fraction(total_heads(towers) - self.removals(towers), layers))


def total_heads(shape: Shape) -> int:
    """Return the number of heads, summed over all towers."""
    return sum(size.layers * size.num_heads for size in shape.values())


class KneeResult(NamedTuple):
    """Position at which a curve of objectives drops.

    Attributes:
        best: Largest number of removals with the maximum objective.
        declines: Whether the last value of the curve is below the first.
        knee: Number of removals at the knee. None if the curve did not fall or has no knee.
    """

    best: int
    declines: bool
    knee: int | None


def find_knee(curve: Sequence[float]) -> KneeResult:
    """Find the knee of the objective over the number of removed heads.

    A greedy search removes harmful heads first: the curve rises, stays level, and drops at the end. The knee
    is found in four steps:

    1. If a value is above the first value, the curve is cut. The last point is the removal after the last
      value that is at least the first value. Later values describe a broken model, and the knee must not
      depend on the length of the run.
    2. All values before `best`, the last maximum, are replaced by the maximum.
    3. The curve is replaced by its least concave majorant. This removes temporary dips. All corners of the
      majorant are points of the curve.
    4. Kneedle (Satopää et al. 2011, section III) finds the knee of the concave decreasing curve with
      sensitivity 1. The knee is the point with the largest distance above the chord from the first to the
      last point, with both axes scaled to [0, 1]. Fewer removals win ties, up to rounding.

    Therefore the knee is never before `best`. If the curve rises, the value at the knee is at least the first
    value. If the curve only falls, the knee depends on the length of the run.

    Args:
        curve: Objective after 0, 1, ..., R removals, finite, at least one value. Higher is better.

    Returns:
        `best`, whether the last value is below the first, and the knee. The knee is None if the last value is
        not below the first, or Kneedle finds no knee.
    """
    best = max(range(len(curve)), key=lambda i: (curve[i], i))
    fell = curve[-1] < curve[0]
    rose = curve[best] > curve[0]
    last_above = max(i for i, value in enumerate(curve) if value >= curve[0]) if rose else len(curve)
    lifted = [curve[best]] * best + list(curve[best : last_above + 2])
    return KneeResult(best, fell, _knee(concave_majorant(lifted)) if fell else None)


def concave_majorant(values: Sequence[float]) -> list[float]:
    """Return the values of the least concave function on 0, 1, ... above or equal to the given values.

    Args:
        values: Finite, at least one value.
    """
    corners: list[tuple[int, float]] = []
    for point in enumerate(values):
        while len(corners) > 1 and not _is_above_chord(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    majorant = [float(values[0])]
    for (start, low), (end, high) in pairwise(corners):
        steps = end - start
        majorant += [*(low + (high - low) * (i / steps) for i in range(1, steps)), float(high)]
    return majorant


def _is_above_chord(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    """Return whether b is above the straight line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) > (c[1] - a[1]) * (b[0] - a[0])


def _knee(values: Sequence[float]) -> int | None:
    from kneed import KneeLocator  # noqa: PLC0415 - loads matplotlib

    knee = KneeLocator(range(len(values)), values, S=1.0, curve="concave", direction="decreasing").knee
    return None if knee is None else int(knee)
