"""What a row of the table of metrics says. Importing it loads no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


ARROWS = {True: " ↑", False: " ↓", None: ""}
"""Which way is better."""


class MetricNeeds(Enum):
    """What a number is measured on."""

    LABELS = auto()
    MEMBERS = auto()
    OOD = auto()
    TEMPERATURE = auto()
    WEIGHTS = auto()
    TIME = auto()


class Unit(Enum):
    """How a number reads."""

    PURE = auto()
    SHARE = auto()
    NATS = auto()
    COUNT = auto()
    MS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number that a report may hold.

    Attributes:
        name: The key in reports.
        needs: What it is measured on; everything that needs members is measured on each OOD set too.
        definition: One sentence, with its source.
        higher_is_better: None where more is neither better nor worse.
        column: The head of its column in tables, `{batch_size}` from the report's options; None keeps it out of them.
        unit: Of the stored value.
        low: Smallest possible value.
        high: Largest possible value, `inf` if it has no bound that holds for every model.
        reads: What `compute` takes, by name: vectors with an entry a sample, of `per_sample.answers` or `per_sample.places`.
        compute: Maps what it reads, each (..., N), to values (...), so that resamples or candidates are rows of a batch.
            Metrics of members map probabilities (M, N, C) to a number. None: measured elsewhere.
        interval: Whether reports say how far it may be off; metrics of members never do.
        bins: Of a calibration error, maps confidences (N,) to the samples' bins (N,), int64, counted from 0.
    """

    name: str
    needs: MetricNeeds
    definition: str
    higher_is_better: bool | None = None
    column: str | None = None
    unit: Unit = Unit.PURE
    low: float = 0.0
    high: float = math.inf
    reads: tuple[str, ...] = ()
    compute: Callable[..., Tensor | float] | None = None
    interval: bool = False
    bins: Callable[[Tensor], Tensor] | None = None

    @property
    def head(self) -> str:
        """What stands above it in tables: its column, and which way is better."""
        return f"{self.column or self.name}{ARROWS[self.higher_is_better]}"

    def of(self, sample: Mapping[str, Tensor]) -> Tensor | float:
        """Return the values (...) of what was prepared under the names that the metric reads.

        Raises:
            ValueError: If the metric does not follow from predictions.
        """
        if self.compute is None:
            raise ValueError(f"`{self.name}` does not follow from predictions")
        return self.compute(*(sample[name] for name in self.reads))
