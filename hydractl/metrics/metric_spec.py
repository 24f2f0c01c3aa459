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
"""Suffix of a table heading: the direction of better values."""


class MetricNeeds(Enum):
    """Input that a metric needs.

    Attributes:
        LABELS: Labels of the ID set.
        QUERIES: Labelled pairs of query and passage.
        TASK: Data for a metric of a single task, such as spans.
        SETS: Prediction sets.
        CERTAINTY: Labels of the ID set, and answers ranked by an OOD score.
        MEMBERS: Each member's probabilities.
        OOD: An OOD set.
        TEMPERATURE: A temperature.
        WEIGHTS: The model, for its size and operations.
        TIME: A measurement of latency.
    """

    LABELS = auto()
    QUERIES = auto()
    TASK = auto()
    SETS = auto()
    CERTAINTY = auto()
    MEMBERS = auto()
    OOD = auto()
    TEMPERATURE = auto()
    WEIGHTS = auto()
    TIME = auto()


WHERE_PRESENT = (MetricNeeds.TASK, MetricNeeds.QUERIES, MetricNeeds.SETS)
"""Inputs that only some rows have. Tables leave these metrics out for other rows."""
BY_SCORE = (MetricNeeds.OOD, MetricNeeds.CERTAINTY)
"""Inputs with an OOD score. Reports have these metrics for each score."""
ON_ID_DATA = (MetricNeeds.TEMPERATURE, MetricNeeds.LABELS, *WHERE_PRESENT)


class Unit(Enum):
    """Unit of a value: a plain number, a fraction in [0, 1], nats, a count, or milliseconds."""

    PURE = auto()
    SHARE = auto()
    NATS = auto()
    COUNT = auto()
    MS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Definition of a metric in reports.

    Attributes:
        name: Key in reports.
        needs: Input of the metric. Metrics of members are also measured on each OOD set.
        definition: Definition for reports in one sentence, with the source.
        higher_is_better: `None` if neither direction is better.
        column: Heading in tables, with `{batch_size}` from the options of the report. `None` to leave the
            metric out of tables.
        unit: Unit of the stored value.
        low: Smallest possible value.
        high: Largest possible value; infinite without a bound for all models.
        arguments: Names of the arguments of `compute`: vectors with one entry per sample, from
            `per_sample.answers`, `per_sample.places` or `per_sample.certainty_ranks`.
        compute: Function from arguments of shape (..., N) to values of shape (...), so resamples or
            candidates can be a batch. Metrics of members map probabilities (M, N, C) to a number. `None` if
            the metric is measured elsewhere.
        interval: Whether reports give an interval; always false for metrics of members.
        may_lack: Whether the metric is undefined for some data, such as data without a predicted span.
        bins: For a calibration error: function from confidences (N,) to bin indices (N,), int64, from 0.
    """

    name: str
    needs: MetricNeeds
    definition: str
    higher_is_better: bool | None = None
    column: str | None = None
    unit: Unit = Unit.PURE
    low: float = 0.0
    high: float = math.inf
    arguments: tuple[str, ...] = ()
    compute: Callable[..., Tensor | float] | None = None
    interval: bool = False
    may_lack: bool = False
    bins: Callable[[Tensor], Tensor] | None = None

    @property
    def head(self) -> str:
        """Table heading with an arrow for the direction of better values."""
        return f"{self.column or self.name}{ARROWS[self.higher_is_better]}"

    def of(self, sample: Mapping[str, Tensor]) -> Tensor | float:
        """Return the metric, shape (...), for prepared arguments by name.

        Raises:
            ValueError: If the metric is not computed from predictions.
        """
        if self.compute is None:
            raise ValueError(f"`{self.name}` cannot be computed from predictions")
        return self.compute(*(sample[name] for name in self.arguments))


# Rows of a bfloat16 softmax over a thousand classes sum to 1 within about 0.4 %.
ROW_SUM_TOLERANCE = 1e-2


def check_probs(probs: Tensor, *, dims: int = 2) -> None:
    """Raise unless a tensor is a non-empty stack of probability vectors.

    Args:
        probs: Classes C on the last axis; samples or members on all other axes.
        dims: Required number of axes.

    Raises:
        ValueError: If the shape is wrong or empty, a value is not finite or negative, or a row does not sum
            to 1 within 1e-2, as for logits.
    """
    if probs.ndim != dims or probs.numel() == 0:
        raise ValueError(f"probabilities must have {dims} non-empty axes, got shape {tuple(probs.shape)}")
    if not bool(probs.isfinite().all()):
        raise ValueError("probabilities must be finite")
    if bool((probs < 0).any()):
        raise ValueError("probabilities must not be negative; pass probabilities, not logits")
    worst = float((probs.double().sum(-1) - 1).abs().max())
    if worst > ROW_SUM_TOLERANCE:
        raise ValueError(f"probabilities must sum to 1 over classes, but a row is off by {worst:.3g}")


def check_labels(labels: Tensor, *, samples: int, classes: int) -> None:
    """Raise unless labels have one class index per sample.

    Args:
        labels: Shape (B,), integer, in 0..C-1.
        samples: B.
        classes: C.

    Raises:
        ValueError: If shape, dtype or range is wrong.
    """
    if labels.shape != (samples,):
        raise ValueError(f"labels must have shape ({samples},), got {tuple(labels.shape)}")
    if not str(labels.dtype).startswith(("torch.int", "torch.uint")):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, got {low}..{high}")
