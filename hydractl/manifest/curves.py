"""What figures of a report are drawn from: curves of a row, and what its models are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import StrictModel
from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.header import Step
from hydractl.manifest.shift_groups import ID_NAME

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
MOST_POINTS = 101
"""Of one line."""


class Bins(StrictModel):
    """Samples by the confidence in the predicted class, as ECE has them: of each bin how many, and means (0 of none)."""

    count: tuple[Count, ...] = Field(min_length=1, max_length=MOST_POINTS)
    confidence: tuple[Share, ...]
    accuracy: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len({len(self.count), len(self.confidence), len(self.accuracy)}) > 1:
            raise ValueError("count, confidence, accuracy: one number a bin each")
        return self


class Line(StrictModel):
    """Points of a curve from left to right, each one exact."""

    x: tuple[Share, ...] = Field(min_length=1, max_length=MOST_POINTS)
    y: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if len(self.x) != len(self.y) or list(self.x) != sorted(self.x):
            raise ValueError("x, y: as many of each, x in order")
        return self


class Curves(StrictModel):
    """The curves of one row.

    Attributes:
        reliability: On the ID set.
        confidence: For the ID set, `id`, and each OOD set how many samples have a confidence in each of some equal parts of
            [0, 1].
        risk: The share of wrong answers (y) among the most confident share of the ID samples (x).
        roc: For each OOD set the share of it that is flagged (y) where so much of ID is (x), by the first OOD score.
    """

    reliability: Bins
    confidence: dict[str, Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_POINTS)]]
    risk: Line
    roc: dict[str, Line] = Field(default={})

    def is_of(self, ood: Collection[str]) -> bool:
        """Return whether these are the curves of the ID set and of OOD sets of these names."""
        return self.confidence.keys() == {ID_NAME, *ood} and self.roc.keys() == {*ood}


class Origin(StrictModel):
    """What one model of a row is: its name, the heads that each member keeps, and what made it."""

    name: str
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1)
    made_by: Step | None = None
