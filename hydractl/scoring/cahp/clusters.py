"""Heads as points of a plane, groups of points, how well they are apart, and how many there should be (CAHP, steps 3 and 5).

Axes: N heads or points, k groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import kmedoids
import numpy as np
import torch
from kneed import KneeLocator
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from hydractl.errors import DataError

if TYPE_CHECKING:
    from hydractl.scoring.cahp.profile import HeadDistances

STEPS = 1000
FIRST_SPREAD = 1e-4
"""The standard deviation of the first coordinate to begin with, as scikit-learn's own."""
STEPS_OF_DISTANCE = 1 << 40
"""The largest distance as k-medoids sees it."""
OTHER_MACHINES = 2e-3
"""By how much distances may differ between a CPU and a GPU, in proportion."""
FLAT = 1e-9
"""A curve that rises by less has no knee: what a polynomial adds by rounding would decide."""


def fitting_perplexity(requested: float, heads: int) -> float:
    """Return a perplexity that N heads allow: what was asked if it is below N - 1, else (N - 1) / 3.

    Perplexity is the effective number of neighbours, of which each head has N - 1; a third of them is customary.
    """
    return requested if requested < heads - 1 else (heads - 1) / 3


def embed(compared: HeadDistances, *, perplexity: float, seed: int) -> torch.Tensor:
    """Return heads as points (N, 2), fp64, by t-SNE of their class-separability profiles; a function of these and the seed.

    scikit-learn (1.9) squares the distances that it is given as it squares those that it computes itself. Its threads add up in
    an order of their own, so one is used here, which for so few points is also the fastest.

    t-SNE is chaotic: profiles or first points that differ by 1e-7, as between two machines, end in groups as different as
    another seed's. Of 144 heads in six clear families and 20 groups about half of the pairs agree (adjusted Rand index 0.5 to
    0.7), of 48 heads without any structure nearly none (0.1 to 0.4). Equal bits give equal points.

    Profiles that were held go to t-SNE as they are, as in the source. Of the others it is given the distances, and the first
    two principal components to begin with, which it would have begun with itself; they are found up to sign and to
    rounding, so both forms agree as well as two machines do.

    Raises:
        DataError: If the points are not finite.
    """
    tsne_input = compared.distances if compared.profiles is None else compared.profiles
    tsne = TSNE(
        n_components=2,
        max_iter=STEPS,
        perplexity=perplexity,
        random_state=seed,
        init="pca" if compared.gram is None else principal_start(compared.gram),
        metric="precomputed" if compared.profiles is None else "euclidean",
    )
    with threadpool_limits(limits=1):
        points = torch.from_numpy(tsne.fit_transform(tsne_input.numpy()))
    if not points.isfinite().all():
        raise DataError("t-SNE returns points that are not finite", hint="add `--embedding none`")
    return points.double()


def principal_start(gram: torch.Tensor) -> np.ndarray:
    """Return the first two principal components (N, 2), fp32, scaled so that the first has the spread `FIRST_SPREAD`.

    Args:
        gram: Inner products (N, N) of centred points.
    """
    values, vectors = torch.linalg.eigh(gram)
    points = (vectors * values.clamp(min=0).sqrt()).flip(-1)[:, :2]
    largest = points.abs().argmax(dim=0)
    points = points * points.gather(0, largest[None]).sign()  # of two signs the one that makes it positive
    start: np.ndarray = (points / points[:, 0].std(correction=0) * FIRST_SPREAD).float().numpy()
    return start


class Clustering(NamedTuple):
    """k groups of N points.

    Attributes:
        medoids: The point in the middle of each group, increasing; k of them.
        group: Of each point (N,), a position in `medoids`; the lower of two medoids that are as near.
    """

    medoids: tuple[int, ...]
    group: torch.Tensor

    def members(self) -> list[list[int]]:
        """Return the points of each group, increasing."""
        return [(self.group == c).nonzero().flatten().tolist() for c in range(len(self.medoids))]


class Knee(NamedTuple):
    """How many groups.

    Attributes:
        k: The number.
        source: How it was found.
        degree: Of the polynomial that smoothed the curve.
    """

    k: int
    source: KneeSource
    degree: int


class KneeSource(StrEnum):
    """How a knee was found."""

    KNEED = "kneed"
    CHORD = "chord"
    """There is none; the highest point above the line from the curve's first to its last."""


def group_points(distances: torch.Tensor, k: int, *, seed: int) -> Clustering:
    """Group points by k-medoids, FasterPAM (Schubert and Rousseeuw 2021) from random medoids.

    On one thread, as the library's results depend on how many there are. Distances are whole numbers to it, whose sums are exact: of
    two points that are a group either may be the medoid, and rounding would decide, then a swap, and then all swaps that follow.

    Args:
        distances: (N, N), finite.
        k: 1 to N.
        seed: Of the first medoids and the order of swaps.
    """
    steps = (
        distances * (STEPS_OF_DISTANCE / distances.max().clamp(min=torch.finfo(distances.dtype).tiny))
    ).round()
    result = kmedoids.fasterpam(steps.numpy(), k, random_state=seed, n_cpu=1)
    medoids = sorted(int(m) for m in result.medoids)
    group = distances[:, medoids].argmin(dim=1)
    group[medoids] = torch.arange(k)  # two medoids may lie on one spot
    return Clustering(tuple(medoids), group)


def hangs_on_rounding(distances: torch.Tensor, grouped: Clustering, *, seed: int) -> bool:
    """Return whether distances that are up to `OTHER_MACHINES` longer or shorter, drawn once, would be grouped otherwise."""
    noise = torch.rand(distances.shape, generator=torch.Generator().manual_seed(seed), dtype=distances.dtype)
    change = OTHER_MACHINES * (2 * noise - 1).triu()
    nearby = group_points(distances * (1 + change + change.T), len(grouped.medoids), seed=seed)
    return {*map(tuple, nearby.members())} != {*map(tuple, grouped.members())}


def mean_simplified_silhouette(distances: torch.Tensor, grouped: Clustering) -> float:
    """Return MSS (CAHP, step 5; GB-AFS): the mean of (b - a) / max(a, b) over points, in [-1, 1].

    a is a point's distance to its own medoid, b its mean distance to the other medoids: not to the nearest, as in the
    ordinary simplified silhouette. Points that lie on their medoid do not count; 1 if all do.

    Args:
        distances: (N, N).
        grouped: At least two groups.
    """
    to_medoids = distances[:, list(grouped.medoids)]
    a = to_medoids.gather(1, grouped.group[:, None]).squeeze(1)
    b = (to_medoids.sum(dim=1) - a) / (len(grouped.medoids) - 1)
    away = a > 0
    if not away.any():
        return 1.0
    a, b = a[away], b[away]
    return float(((b - a) / torch.maximum(a, b)).mean())


def silhouettes(
    distances: torch.Tensor, *, seed: int, track: Callable[[range], Iterable[int]]
) -> tuple[list[Clustering], list[float]]:
    """Return groups and MSS for every k from 2 to N - 1; from the first MSS of 1 on all are 1 and groups are left out."""
    groups: list[Clustering] = []
    curve: list[float] = []
    for k in track(range(2, len(distances))):
        if curve and curve[-1] == 1.0:
            curve.append(1.0)
            continue
        groups.append(group_points(distances, k, seed=seed))
        curve.append(mean_simplified_silhouette(distances, groups[-1]))
    return groups, curve


def find_knee(curve: Sequence[float], *, degree: int) -> Knee:
    """Return where a rising concave curve bends (Kneedle, Satopää et al. 2011, S = 1) after smoothing by a polynomial.

    Args:
        curve: MSS for k = 2, 3, ...; at least one.
        degree: Of the polynomial; lowered to one less than there are points.

    Returns:
        The knee; where there is none, the k whose MSS is highest above the chord, the lowest of several.
    """
    degree = min(degree, len(curve) - 1)
    numbers = list(range(2, 2 + len(curve)))
    knee = None
    if len(curve) > 2 and max(curve) - min(curve) > FLAT:
        knee = KneeLocator(
            numbers,
            list(curve),
            curve="concave",
            direction="increasing",
            interp_method="polynomial",
            polynomial_degree=degree,
        ).knee
    if knee is not None:
        return Knee(int(knee), KneeSource.KNEED, degree)
    rise = (curve[-1] - curve[0]) / max(1, len(curve) - 1)
    above = [mss - curve[0] - rise * i for i, mss in enumerate(curve)]
    return Knee(2 + max(range(len(curve)), key=lambda i: (above[i], -i)), KneeSource.CHORD, degree)
