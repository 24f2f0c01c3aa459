"""What divides the logits of a model before they become probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from operator import mul

DIGITS = 6
"""Significant digits of a stored temperature, the precision of the search for it."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """A temperature T, and those of the labels of a model for several if each has its own.

    Attributes:
        common: T > 0; divides all logits where `by_label` is empty.
        by_label: T > 0 of each of Q labels, which divide their logits instead.
    """

    common: float = 1.0
    by_label: tuple[float, ...] = ()

    @property
    def numbers(self) -> tuple[float, ...]:
        """T, and those of labels."""
        return self.common, *self.by_label

    def __mul__(self, other: Temperature) -> Temperature:
        """Return what logits are divided by that are divided by one temperature after the other."""
        if not (self.by_label or other.by_label):
            return Temperature(self.common * other.common)
        factors = (temperature.by_label or repeat(temperature.common) for temperature in (self, other))
        return Temperature(self.common * other.common, tuple(map(mul, *factors)))

    def __str__(self) -> str:
        labels = f" ({min(self.by_label):g} to {max(self.by_label):g} by label)" if self.by_label else ""
        return f"{self.common:g}{labels}"

    def rounded(self) -> Temperature:
        """Return it as a checkpoint stores it."""
        common, *by_label = (float(f"{number:.{DIGITS}g}") for number in self.numbers)
        return Temperature(common, tuple(by_label))
