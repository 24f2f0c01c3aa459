"""Fields that research adds to reports: records of baselines, and results of analyses under the names of the analyses.

Members count from 0, over all models of a row; heads have the numbers that they have in the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import not_
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import Fingerprint, Key, OptionValue, StrictModel, Value
from hydractl.manifest.head_mask import HeadName
from hydractl.research.corruptions.names import SHIFT, scopes
from hydractl.research.corruptions.schema import Shift

Member = Annotated[int, Field(ge=0)]
MOST_DRAWN = 400
"""Points of a data set in a plane, shape (N, 2)."""


class CentroidDistances(StrictModel):
    """How far a head's centroid of each OOD set is from that of the ID set."""

    member: Member
    head: HeadName
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Centroids(StrictModel):
    """Distances between centroids in the last layer, of every head and means over heads."""

    heads: tuple[CentroidDistances, ...] = Field(min_length=1)
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Plane(StrictModel):
    """The two principal components of what some heads say of all data together.

    Attributes:
        heads: Whose outputs lie side by side.
        variance: The share of the variance along each.
        points: Of every data set, the ID set being `id`, some samples.
        mahalanobis: How far each OOD set's centroid is from that of the ID set, in the plane.
    """

    heads: tuple[HeadName, ...] = Field(min_length=1)
    variance: tuple[float, float]
    points: dict[str, Annotated[tuple[tuple[float, float], ...], Field(min_length=1, max_length=MOST_DRAWN)]]
    mahalanobis: dict[str, float]


class Planes(StrictModel):
    """Those of a member's most and least important heads, by scores of some name."""

    member: Member
    scores: str
    most: Plane
    least: Plane


class Spread(StrictModel):
    """A number's mean, least and greatest value over several ensembles."""

    mean: float
    low: float
    high: float


class EnsembleSize(StrictModel):
    """Ensembles of some of a row's members: how many members each has, how many ensembles were measured and how many there are."""

    members: int = Field(ge=1)
    measured: int = Field(ge=1)
    possible: int = Field(ge=1)
    values: dict[str, Spread]
    means: dict[str, dict[str, Spread]] = Field(default={})


class Pruned(StrictModel):
    """What Proposition 1 says of one member under a corruption, beside what is so.

    Losses are mean cross-entropies in nats; `clean` is of the ID set, `noisy` of the corrupted one.

    Attributes:
        member: Which.
        corruption: `name:severity`.
        moved: How many weights the step changes.
        gap: The loss on noisy minus that on clean data, of the base.
        gap_pruned: The same of the member.
        slope_clean: The gradient's product with the step.
        slope: The same on noisy data.
        curvature_clean: The step's product with the Hessian's product with the step.
        curvature: The same on noisy data.
        diagonal: Mean over the weights that the step changes of the Hessian's diagonal, noisy minus clean: an estimate.
        deviation: The standard error of that estimate.
    """

    member: Member
    corruption: str
    moved: int = Field(ge=0)
    gap: float
    gap_pruned: float
    slope_clean: float
    slope: float
    curvature_clean: float
    curvature: float
    diagonal: float
    deviation: float = Field(ge=0)

    @property
    def widened(self) -> float:
        """By how much pruning widened the gap."""
        return self.gap_pruned - self.gap

    @property
    def expected(self) -> float:
        """By how much the expansion to second order says that it does."""
        return self.slope - self.slope_clean + (self.curvature - self.curvature_clean) / 2


class HeadTable(StrictModel):
    """A number for each head of a tower of a member, layers by heads of the base; None for heads that are gone."""

    member: Member
    tower: str
    scores: tuple[tuple[float | None, ...], ...] = Field(min_length=1)

    @property
    def defined_scores(self) -> tuple[float, ...]:
        """The numbers."""
        return tuple(score for row in self.scores for score in row if score is not None)


class BaseWithFewerHeads(StrictModel):
    """Numbers of a base that keeps some of its heads, by scores of some name, of the heads that these are of."""

    scores: str
    kept: int = Field(ge=0)
    heads: int = Field(ge=1)
    values: dict[str, float]
    means: dict[str, dict[str, float]] = Field(default={})


class MergedAndSeparate(StrictModel):
    """A number of the hydra, and of its members apart."""

    merged: float
    apart: float


class Merging(StrictModel):
    """What merging weights changed in a hydra, beside its members as they were.

    Attributes:
        values: Numbers of both on labelled data and of members.
        means: Likewise, over OOD sets.
        agreement: The share of ID samples for which both predict the same class.
        divergence: Mean Kullback-Leibler divergence of the hydra's probabilities from the ensemble's, in nats.
        distances: For each block with merged weights, `tower.layer`, how far members' merged weights are from their mean: the root of
            the mean squared length of the differences, as a share of the mean's length.
    """

    values: dict[str, MergedAndSeparate]
    means: dict[str, dict[str, MergedAndSeparate]] = Field(default={})
    agreement: float = Field(ge=0, le=1)
    divergence: float
    distances: dict[str, float]


class Analyses(StrictModel):
    """What was found; what was not asked for, or cannot be asked of a row, is absent."""

    proposition: tuple[Pruned, ...] = Field(default=(), exclude_if=not_)
    centroids: Centroids | None = Field(default=None, exclude_if=lambda value: value is None)
    pca: tuple[Planes, ...] = Field(default=(), exclude_if=not_)
    members: tuple[EnsembleSize, ...] = Field(default=(), exclude_if=not_)
    mlps: Merging | None = Field(default=None, exclude_if=lambda value: value is None)
    heads: tuple[BaseWithFewerHeads, ...] = Field(default=(), exclude_if=not_)
    taylor: tuple[HeadTable, ...] = Field(default=(), exclude_if=not_)


class Derived(StrictModel):
    """Record of a baseline: its kind and options, the data that it was fitted on, and the data that an option was selected on."""

    kind: str
    options: dict[Key, OptionValue]
    data: Fingerprint | None = Field(default=None, exclude_if=lambda value: value is None)
    val: Fingerprint | None = Field(default=None, exclude_if=lambda value: value is None)

    def __str__(self) -> str:
        from hydractl.reporting.lineage import pairs  # noqa: PLC0415 - imports reports, which import this module

        return f"{self.kind} {pairs(self.options)}".rstrip()


class DifferenceFields(StrictModel):
    """Fields of a difference. Attributes: shift: Under corruptions, by the names that `Shift` explains."""

    shift: dict[str, dict[str, Value]] = Field(default={}, exclude_if=not_)

    def under(self, scope: str) -> Mapping[str, Value]:
        """Return the differences under corruption."""
        return self.shift.get(scope, {})


class RowFields(StrictModel):
    """Fields of a row.

    Attributes:
        derived: Record of the baseline that each model became; None for a model that answers as it is. Empty without baselines.
        shift: Numbers under corruptions.
        analyses: Results of `--analyse`.
    """

    derived: tuple[Derived | None, ...] = Field(default=(), exclude_if=not_)
    shift: Shift | None = Field(default=None, exclude_if=lambda value: value is None)
    analyses: Analyses | None = Field(default=None, exclude_if=lambda value: value is None)

    @property
    def label_scopes(self) -> Sequence[str]:
        """Each corruption, and all corruptions by severity."""
        names = scopes(self.shift.cells) if self.shift else ()
        return [name for name in names if name.startswith(SHIFT) or ":" not in name]

    def under(self, scope: str) -> Mapping[str, float]:
        """Return the numbers under corruption."""
        return self.shift.at(scope) if self.shift else {}

    @property
    def intervals_under(self) -> Mapping[str, Mapping[str, tuple[float, float]]]:
        """95 % intervals under corruption."""
        return self.shift.intervals if self.shift else {}

    @property
    def derivations(self) -> Sequence[object | None]:
        """The records of baselines."""
        return self.derived


class ReportFields(StrictModel):
    """Fields of a report. Attributes: scores: Files of `--scores`, `NAME=FILE`."""

    if TYPE_CHECKING:
        rows: tuple[RowFields, ...]
        definitions: dict[str, str]
    scores: tuple[Fingerprint, ...] = Field(default=(), exclude_if=not_)

    def further_inputs(self) -> Sequence[Fingerprint]:
        """Return the files of scores, and the data of baselines."""
        derived = [model for row in self.rows for model in row.derived if model is not None]
        data = [*(model.data for model in derived), *(model.val for model in derived)]
        return [file for file in (*self.scores, *data) if file is not None]

    @model_validator(mode="after")
    def _check_shift(self) -> Self:
        for i, row in enumerate(self.rows):
            gaps = getattr(getattr(row, "difference", None), "shift", {})
            cells = row.shift.cells if row.shift else {}
            if not gaps.keys() <= scopes(cells).keys():
                raise ValueError(f"rows[{i}].difference.shift: must have the keys of `shift`")
            for name in {*chain(*gaps.values(), *cells.values())} - self.definitions.keys():
                raise ValueError(f"rows[{i}].shift: `{name}` has no definition")
        return self
