"""What `eval --analyse` finds of a row; each name is that of an analysis.

Members count from 0, over all models of a row; heads have the numbers that they have in the base.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hydractl.manifest.document import Strict
from hydractl.manifest.heads import HeadName

Member = Annotated[int, Field(ge=0)]
MOST_DRAWN = 400
"""Points of a data set in a plane."""


class Apart(Strict):
    """How far a head's centroid of each OOD set is from that of the ID set."""

    member: Member
    head: HeadName
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Centroids(Strict):
    """Distances between centroids in the last layer, of every head and means over heads."""

    heads: tuple[Apart, ...] = Field(min_length=1)
    euclidean: dict[str, float]
    mahalanobis: dict[str, float]


class Plane(Strict):
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


class Planes(Strict):
    """Those of a member's most and least important heads, by scores of some name."""

    member: Member
    scores: str
    most: Plane
    least: Plane


class Spread(Strict):
    """A number's mean, least and greatest value over several ensembles."""

    mean: float
    low: float
    high: float


class Size(Strict):
    """Ensembles of some of a row's members: how many members each has, how many ensembles were measured and how many there are."""

    members: int = Field(ge=1)
    measured: int = Field(ge=1)
    possible: int = Field(ge=1)
    values: dict[str, Spread]
    means: dict[str, dict[str, Spread]] = Field(default={})


class Pruned(Strict):
    """What Proposition 1 says of one member under a corruption, beside what is so.

    Losses are mean cross-entropies in nats; `clean` is of the ID set, `noisy` of the corrupted one.

    Attributes:
        member: Which.
        corruption: `name:severity`.
        moved: How many weights the step changes.
        gap: The loss on noisy less that on clean data, of the base.
        gap_pruned: The same of the member.
        slope_clean: The gradient's product with the step.
        slope: The same on noisy data.
        curvature_clean: The step's product with the Hessian's product with the step.
        curvature: The same on noisy data.
        diagonal: Mean over the weights that the step changes of the Hessian's diagonal, noisy less clean: an estimate.
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


class Analyses(Strict):
    """What was found; what was not asked for, or cannot be asked of a row, is absent."""

    proposition: tuple[Pruned, ...] = Field(default=(), exclude_if=lambda value: not value)
    centroids: Centroids | None = Field(default=None, exclude_if=lambda value: value is None)
    pca: tuple[Planes, ...] = Field(default=(), exclude_if=lambda value: not value)
    members: tuple[Size, ...] = Field(default=(), exclude_if=lambda value: not value)
