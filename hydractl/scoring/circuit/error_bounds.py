"""How far expected values are off, and what a look at a head therefore promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, pstdev

from hydractl.manifest.head_mask import HeadId

GROWTH = 1.5
"""The squared error grows with this power of the steps since a head was seen."""
FIRST_GUESS = 1 / 3
"""The error after one step before any was seen, of how much heads differ."""
WEIGHT_OF_GUESS, WEIGHT_OF_OTHERS = 4, 6
"""How many errors the first guess, and those of other layers, count for."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a tower."""

    tower: str
    layer: int


@dataclass
class DeviationBound:
    """The errors of expected values so far.

    Attributes:
        spread: How much heads differ in value, the scale of all of it.
    """

    spread: float
    _error_counts: dict[Layer, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Sequence[float]) -> DeviationBound:
        """Return that of heads whose values have all been seen just now."""
        return cls(pstdev(values))

    def learn(self, head: HeadId, steps: int, error: float) -> None:
        """Take note of how far off a head's expected value was, so many steps after the head was seen last."""
        layer = Layer(head.tower, head.layer)
        total, count = self._error_counts.get(layer, (0.0, 0))
        self._error_counts[layer] = (total + error**2 / steps**GROWTH, count + 1)

    def deviation(self, head: HeadId, steps: int) -> float:
        """Return the standard deviation of a head's value from what is expected."""
        total = sum(per_step for per_step, _ in self._error_counts.values())
        count = sum(count_of_errors for _, count_of_errors in self._error_counts.values())
        guess = (FIRST_GUESS * self.spread) ** 2
        common = (total + WEIGHT_OF_GUESS * guess) / (count + WEIGHT_OF_GUESS)
        head_errors, times = self._error_counts.get(Layer(head.tower, head.layer), (0.0, 0))
        variance = (head_errors + WEIGHT_OF_OTHERS * common) / (times + WEIGHT_OF_OTHERS)
        return math.sqrt(variance * steps**GROWTH)


def promise(expected: float, deviation: float, bar: float) -> float:
    """Return by how much a value is expected to exceed a bar, counted as nothing where it does not (expected improvement)."""
    if deviation == 0:
        return max(0.0, expected - bar)
    z = (expected - bar) / deviation
    return (expected - bar) * _NORMAL.cdf(z) + deviation * _NORMAL.pdf(z)
