"""Specification of a metric. Importing this module does not load torch."""

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
    """Data that a metric needs."""

    LABELS = auto()
    QUERIES = auto()
    TASK = auto()
    SETS = auto()
    MEMBERS = auto()
    OOD = auto()
    TEMPERATURE = auto()
    WEIGHTS = auto()
    TIME = auto()


WHERE_PRESENT = (MetricNeeds.TASK, MetricNeeds.QUERIES, MetricNeeds.SETS)
"""What only some rows have; those of others are shown without these metrics."""
ON_ID_DATA = (MetricNeeds.TEMPERATURE, MetricNeeds.LABELS, *WHERE_PRESENT)


class Unit(Enum):
    """Unit of a value."""

    PURE = auto()
    SHARE = auto()
    NATS = auto()
    COUNT = auto()
    MS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric in a report.

    Attributes:
        name: Key in reports.
        needs: Data that it needs; metrics of members are also measured on each OOD set.
        definition: One sentence, with its source.
        higher_is_better: None if neither direction is better.
        column: Column heading in tables, with `{batch_size}` from the options of the report; None to leave it out of
            tables.
        unit: Unit of the stored value.
        low: Smallest possible value.
        high: Largest possible value, `inf` if there is no common bound for all models.
        reads: Names of the arguments of `compute`: vectors with one entry per sample, from `per_sample.answers` or
            `per_sample.places`.
        compute: Maps its arguments, each (..., N), to values (...), so that resamples or candidates can be a batch.
            Metrics of members map probabilities (M, N, C) to a number. None if measured elsewhere.
        interval: Whether reports give an interval; never for metrics of members.
        may_lack: Whether there is none on some data, as without a predicted span.
        bins: For a calibration error, maps confidences (N,) to bins (N,), int64, from 0.
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
    may_lack: bool = False
    bins: Callable[[Tensor], Tensor] | None = None

    @property
    def head(self) -> str:
        """What stands above it in tables: its column, and which way is better."""
        return f"{self.column or self.name}{ARROWS[self.higher_is_better]}"

    def of(self, sample: Mapping[str, Tensor]) -> Tensor | float:
        """Return the values (...), given prepared arguments by name.

        Raises:
            ValueError: If the metric cannot be computed from predictions.
        """
        if self.compute is None:
            raise ValueError(f"`{self.name}` cannot be computed from predictions")
        return self.compute(*(sample[name] for name in self.reads))
