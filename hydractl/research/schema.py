"""Report fields of research: records of baselines, corruptions and analyses.

Members are numbered from 0 over all models of a row. Heads have the numbers of the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import not_
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import Fingerprint, Key, OptionValue, StrictModel, Value, is_none
from hydractl.manifest.head_mask import HeadName
from hydractl.research.corruptions.names import SHIFT, scopes
from hydractl.research.corruptions.schema import Shift

Member = Annotated[int, Field(ge=0)]
MOST_DRAWN = 400
"""Largest number of points of a data set in a plane, which bounds the size of a report. Chosen by hand;
analyses store `POINTS` = 200 points, and doubling would allow reports of twice the size."""


class CentroidDistances(StrictModel):
    """Distances of a head's OOD centroids from the ID centroid, by the name of the OOD set."""

    member: Member
    head: HeadName
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Centroids(StrictModel):
    """Distances between centroids in the last layer, for every head and as means over heads."""

    heads: tuple[CentroidDistances, ...] = Field(min_length=1)
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Plane(StrictModel):
    """The first two principal components of some heads' outputs, fitted on all data sets together.

    Attributes:
        heads: Heads with concatenated outputs.
        variance: Share of the variance along each component, in [0, 1].
        points: Projected samples of each data set, a subset. The ID set has the name `id`.
        mahalanobis: Distance of each OOD set's centroid from the ID centroid, within the plane.
    """

    heads: tuple[HeadName, ...] = Field(min_length=1)
    variance: tuple[float, float]
    points: dict[str, Annotated[tuple[tuple[float, float], ...], Field(min_length=1, max_length=MOST_DRAWN)]]
    mahalanobis: dict[str, float]


class Planes(StrictModel):
    """Principal components of a member's most and least important heads, ranked by one file of `--scores`."""

    member: Member
    scores: str
    most: Plane
    least: Plane


class Spread(StrictModel):
    """Mean, minimum and maximum of a number over several ensembles."""

    mean: float
    low: float
    high: float


class EnsembleSize(StrictModel):
    """Metrics of ensembles with a given number of a row's members.

    Attributes:
        members: Members per ensemble.
        measured: Number of measured ensembles.
        possible: Number of possible ensembles.
        values: Metrics on the ID set.
        means: Metrics by group of OOD sets.
    """

    members: int = Field(ge=1)
    measured: int = Field(ge=1)
    possible: int = Field(ge=1)
    values: dict[str, Spread]
    means: dict[str, dict[str, Spread]] = Field(default={})


class Pruned(StrictModel):
    """Terms of Proposition 1 for a member under a corruption; see `hydractl.research.analyses.gradients`.

    Losses are mean cross-entropies in nats. Clean data are the ID set, noisy data the corrupted ID set.

    Attributes:
        member: Number of the member.
        corruption: `name:severity`.
        moved: Number of weights changed by the step.
        gap: Loss of the base on noisy data minus its loss on clean data.
        gap_pruned: The same difference for the member.
        slope_clean: Product of gradient and step on clean data.
        slope: Product of gradient and step on noisy data.
        curvature_clean: Product of step, Hessian and step on clean data.
        curvature: Product of step, Hessian and step on noisy data.
        diagonal: Estimated mean of the Hessian's diagonal over the changed weights, noisy minus clean.
        deviation: Standard error of `diagonal`.
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
        """Increase of the loss gap by pruning."""
        return self.gap_pruned - self.gap

    @property
    def expected(self) -> float:
        """Increase of the loss gap according to the expansion to second order."""
        return self.slope - self.slope_clean + (self.curvature - self.curvature_clean) / 2


class HeadTable(StrictModel):
    """One number per head of a member's tower, layers by heads of the base; None for removed heads."""

    member: Member
    tower: str
    scores: tuple[tuple[float | None, ...], ...] = Field(min_length=1)

    @property
    def defined_scores(self) -> tuple[float, ...]:
        """The numbers of the remaining heads."""
        return tuple(score for row in self.scores for score in row if score is not None)


class BaseWithFewerHeads(StrictModel):
    """Metrics of a base with its least important heads masked.

    Attributes:
        scores: Name of the head importance file.
        kept: Number of kept heads.
        heads: Number of heads in the towers of the file.
        values: Metrics on the ID set.
        means: Metrics by group of OOD sets.
    """

    scores: str
    kept: int = Field(ge=0)
    heads: int = Field(ge=1)
    values: dict[str, float]
    means: dict[str, dict[str, float]] = Field(default={})


class MergedAndSeparate(StrictModel):
    """A number of a hydra with merged weights, and of its separate members."""

    merged: float
    apart: float


class Merging(StrictModel):
    """Comparison of a hydra with merged weights and the ensemble of its separate members.

    Attributes:
        values: Metrics of both on the ID set.
        means: Metrics of both, by group of OOD sets.
        agreement: Share of ID samples for which both predict the same class, in [0, 1].
        divergence: Mean of KL(separate || merged) of the probabilities on the ID set, in nats.
        distances: Relative distance of the members' weights from the merged weights, for each block
            `tower.layer`: the root mean square of the differences' norms divided by the norm of the mean.
    """

    values: dict[str, MergedAndSeparate]
    means: dict[str, dict[str, MergedAndSeparate]] = Field(default={})
    agreement: float = Field(ge=0, le=1)
    divergence: float
    distances: dict[str, float]


class Analyses(StrictModel):
    """Results of analyses, by name. Analyses that were not selected or do not apply are absent."""

    proposition: tuple[Pruned, ...] = Field(default=(), exclude_if=not_)
    centroids: Centroids | None = Field(default=None, exclude_if=is_none)
    pca: tuple[Planes, ...] = Field(default=(), exclude_if=not_)
    members: tuple[EnsembleSize, ...] = Field(default=(), exclude_if=not_)
    mlps: Merging | None = Field(default=None, exclude_if=is_none)
    heads: tuple[BaseWithFewerHeads, ...] = Field(default=(), exclude_if=not_)
    taylor: tuple[HeadTable, ...] = Field(default=(), exclude_if=not_)


class Derived(StrictModel):
    """Record of a baseline.

    Attributes:
        kind: Kind of the baseline, for example `laplace`.
        options: Options, including fitted values.
        data: Data of the fit.
        val: Data for the selection of an option.
    """

    kind: str
    options: dict[Key, OptionValue]
    data: Fingerprint | None = Field(default=None, exclude_if=is_none)
    val: Fingerprint | None = Field(default=None, exclude_if=is_none)

    def __str__(self) -> str:
        from hydractl.reporting.lineage import pairs  # noqa: PLC0415 - imports reports, which import this module

        return f"{self.kind} {pairs(self.options)}".rstrip()


class DifferenceFields(StrictModel):
    """Fields of a difference between rows.

    Attributes:
        shift: Differences under corruptions by scope, for example `fog:3` or `shift`, and by metric.
    """

    shift: dict[str, dict[str, Value]] = Field(default={}, exclude_if=not_)

    def under(self, scope: str) -> Mapping[str, Value]:
        """Return the differences in a scope, for example `fog:3`, by metric.

        Empty if the scope was not measured.
        """
        return self.shift.get(scope, {})


class RowFields(StrictModel):
    """Fields of a row.

    Attributes:
        derived: Record of the baseline made from each model, or None for a model without a baseline. Empty if
            the row has no baselines.
        shift: Metrics under corruptions.
        analyses: Results of `--analyse`.
    """

    derived: tuple[Derived | None, ...] = Field(default=(), exclude_if=not_)
    shift: Shift | None = Field(default=None, exclude_if=is_none)
    analyses: Analyses | None = Field(default=None, exclude_if=is_none)

    @property
    def label_scopes(self) -> Sequence[str]:
        """Measured scopes with labelled data: corruptions such as `fog`, `shift`, and `shift:1` to `shift:5`.

        `shift` is the mean over corruptions.
        """
        names = scopes(self.shift.cells) if self.shift else ()
        return [name for name in names if name.startswith(SHIFT) or ":" not in name]

    def under(self, scope: str) -> Mapping[str, float]:
        """Return the metrics in a scope, for example `fog:3`; empty if the scope was not measured."""
        return self.shift.at(scope) if self.shift else {}

    @property
    def intervals_under(self) -> Mapping[str, Mapping[str, tuple[float, float]]]:
        """95 % intervals under corruptions, by scope and metric."""
        return self.shift.intervals if self.shift else {}

    @property
    def derivations(self) -> Sequence[object | None]:
        """The records of baselines."""
        return self.derived


class ReportFields(StrictModel):
    """Fields of a report.

    Attributes:
        scores: Files of `--scores`, in the form `NAME=FILE`.
    """

    if TYPE_CHECKING:
        rows: tuple[RowFields, ...]
        definitions: dict[str, str]
    scores: tuple[Fingerprint, ...] = Field(default=(), exclude_if=not_)

    def further_inputs(self) -> Sequence[Fingerprint]:
        """Return the head importance files, and the data of baselines."""
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
