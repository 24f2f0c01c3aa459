"""Metrics under corruption in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import not_
from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import StrictModel
from hydractl.research.corruptions.names import scopes

ALL_SEVERITIES = "all"
Severity = Annotated[str, Field(pattern="^([1-5]|all)$")]


class Shift(StrictModel):
    """Metrics on the ID set under corruptions.

    Attributes:
        values: Metrics by corruption and severity (`1` to `5`).
        means: Means over corruptions by severity; `all` is the mean over all cells.
        intervals: 95 % intervals by scope: `fog:3`, `fog` (mean over severities), `shift:3` and `shift`
            (means over corruptions).
    """

    values: dict[str, dict[Severity, dict[str, float]]]
    means: dict[Severity, dict[str, float]]
    intervals: dict[str, dict[str, tuple[float, float]]] = Field(default={}, exclude_if=not_)

    @property
    def cells(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        """Metrics by (corruption, severity)."""
        return {(name, severity): cell for name, by in self.values.items() for severity, cell in by.items()}

    def at(self, scope: str) -> dict[str, float]:
        """Return the metrics of a scope, averaged over its cells; empty if the scope was not measured."""
        cells = self.cells
        over = [cells[cell] for cell in scopes(cells).get(scope, ())]
        shared = [name for name in over[0] if all(name in cell for cell in over)] if over else []
        return {name: math.fsum(numbers[name] for numbers in over) / len(over) for name in shared}

    @model_validator(mode="after")
    def _placed(self) -> Self:
        for scope, intervals in self.intervals.items():
            if not intervals.keys() <= self.at(scope).keys():
                raise ValueError(f"intervals: `{scope}` has {sorted(intervals)}, but no values of these")
        return self
