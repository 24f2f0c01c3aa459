"""CAHP: heads grouped by class separability, one head kept per group (Livertovsky, Somin, Singer 2026).

Axes: N heads of a tower (layer after layer), k groups, P pairs of classes, D numbers of a signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import kmedoids
import numpy as np
import torch
from kneed import KneeLocator
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from hydractl import progress
from hydractl.errors import DataError, UsageError
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadName
from hydractl.messages import counted
from hydractl.scoring.gradients import gate_gradients
from hydractl.scoring.head_profiles import HeadDistances, class_moments, compare
from hydractl.scoring.job import Ranking, ScoreJob, min_max
from hydractl.scoring.settings import CahpSettings

FEWEST_HEADS = 3
"""The number of groups is between 2 and N - 1, so N is at least 3."""
SEEDS = 2**32
"""Number of seeds of scikit-learn and kmedoids. Larger seeds are taken modulo this number."""


def score_cahp(job: ScoreJob) -> Ranking:
    """Group the heads of a tower and compute their salience (CAHP, arXiv 2606.19150, steps 1 to 6).

    1. The attention map of a head on a sample, without padding, becomes a signature of fixed size.
    2. The profile of a head has the Jeffries-Matusita distances of its signatures for each pair of classes.
    3. t-SNE maps profiles to points in the plane. Without t-SNE, profiles are compared directly.
    4. Salience is |∂L/∂ξ| of gates on heads, averaged over batches and min-max scaled over all heads; 1 is
      the most salient.
    5. k-medoids runs for each k. The knee of the mean simplified silhouette selects k, unless a budget fixes
      k.
    6. The heads of a group are sorted by decreasing salience, or by increasing distance to the medoid. Groups
      are sorted by their first heads. Ties are resolved in favor of the lower head.

    `prune` selects one head per group and ensures that no layer is empty (step 7).

    Salience uses the first batches in the order of the data, like the authors' code; `--salience-share 1`
    uses all batches.

    Only one tower can be scored, and its inputs must be the samples. Profiles are comparable because they use
    the same tokens of the same samples. A text tower with the same prompts for every sample does not separate
    classes, so a zero-shot model needs `--towers vision`.

    Raises:
        UsageError: If several towers are scored, or the inputs of the tower are not the samples.
        DataError: If the data is not suitable, or the tower has too few heads.
    """
    job = replace(job, seed=job.seed % SEEDS)
    settings = job.set_for(CahpSettings)
    tower = _only_tower(job)
    heads = job.architecture.towers[tower].layers * job.architecture.towers[tower].num_heads
    if heads < FEWEST_HEADS:
        raise DataError(f"`cahp` needs at least {FEWEST_HEADS} heads, but the model has {heads}")
    progress.step("Computing attention maps by class")
    moments = class_moments(job, tower, size=settings.signature_size)
    if single := moments.counts.count(1):
        progress.warn(
            f"{single} of {counted(len(moments.counts), 'class', 'classes')} have a single sample, so their "
            "variance is set to 1e-6 and the distances between heads are too large"
        )
    compared = compare(moments, device=job.model.device)
    share = max(1, int(settings.salience_share * moments.batches))
    progress.step(f"Computing the salience on {share} of {counted(moments.batches, 'batch', 'batches')}")
    salience = min_max({tower: gate_gradients(job, batches=share)[tower].abs().mean(dim=0).tolist()})[tower]
    distances, results = _placed(compared, settings, heads, job.seed)
    grouped, cluster_results = _grouped(distances, job, settings)
    if depends_on_rounding(distances, grouped, seed=job.seed):
        progress.warn(
            f"heads lie between groups: distances that differ by {OTHER_MACHINES:.1%}, as on another device, would give other groups"
        )
    return Ranking(
        scores={tower: salience},
        clusters=_clusters(tower, grouped, torch.tensor(salience, dtype=torch.float64), distances, settings),
        results={"form": "gram" if compared.profiles is None else "direct", **results, **cluster_results},
    )


def _only_tower(job: ScoreJob) -> str:
    """Return the name of the tower to score.

    Raises:
        UsageError: If several towers are scored, or the inputs of the tower are not the samples.
    """
    towers = list(job.scored)
    blind = [name for name in towers if name in job.model.answer.fixed]
    if len(towers) > 1 or blind:
        seeing = [name for name in job.architecture.towers if name not in job.model.answer.fixed]
        why = (
            f", but the inputs of `{blind[0]}` are the same for every sample"
            if blind
            else f", but {len(towers)} towers are scored"
        )
        raise UsageError(
            f"`cahp` groups the heads of one tower by how well they separate classes{why}",
            hint=f"add `--towers {seeing[-1]}`",
        )
    return towers[0]


def _placed(
    compared: HeadDistances, settings: CahpSettings, heads: int, seed: int
) -> tuple[torch.Tensor, dict[str, OptionValue]]:
    """Return the distances (N, N) for grouping, and `perplexity` for the scores file, empty without t-SNE."""
    if settings.perplexity is None:  # Without t-SNE, profiles are compared directly.
        return compared.distances, {}
    perplexity = fitting_perplexity(settings.perplexity, heads)
    if perplexity != settings.perplexity:
        progress.warn(
            f"{heads} heads are too few for a perplexity of {settings.perplexity:g}; using {perplexity:.3g}"
        )
    progress.step("Embedding heads by t-SNE")
    points = embed(compared, perplexity=perplexity, seed=seed)
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist"), {
        "perplexity": perplexity
    }


def _grouped(
    distances: torch.Tensor, job: ScoreJob, settings: CahpSettings
) -> tuple[Clustering, dict[str, OptionValue]]:
    """Return the groups, and the origin of k for the scores file.

    `k_from` is `budget`, or `kneed` or `chord`, see `Knee`.
    """
    if not job.free:
        k = len(distances) - job.budget
        return group_points(distances, k, seed=job.seed), {"k": k, "k_from": "budget"}
    groups, curve = silhouettes(
        distances,
        seed=job.seed,
        track=lambda ks: progress.track(ks, label="Grouping heads", total=len(ks)),
    )
    knee = find_knee(curve, degree=settings.degree)
    if knee.source == "chord":
        progress.warn(
            f"the silhouettes have no knee; using {knee.k} groups, whose silhouette is highest above the chord. "
            "Set another number with `--keep-fraction F`"
        )
    grouped = (
        groups[knee.k - 2] if knee.k - 2 < len(groups) else group_points(distances, knee.k, seed=job.seed)
    )
    choice_of_k: dict[str, OptionValue] = {"k": knee.k, "k_from": knee.source, "degree": knee.degree}
    return grouped, choice_of_k | {"mss": tuple(curve)}


def _clusters(
    tower: str, grouped: Clustering, salience: torch.Tensor, distances: torch.Tensor, settings: CahpSettings
) -> tuple[tuple[HeadName, ...], ...]:
    """Return the heads of each group, the representative first."""
    by_medoid = settings.representative == "medoid"
    keys = distances.T if by_medoid else -salience.flatten().expand_as(distances)
    # The medoid is first even if a lower head has the same position.
    orders = [
        sorted(members, key=lambda i, medoid=medoid: (by_medoid and i != medoid, float(keys[medoid, i]), i))  # type: ignore[misc]
        for medoid, members in zip(grouped.medoids, grouped.members(), strict=True)
    ]
    width = salience.shape[1]
    return tuple(
        tuple(HeadName(tower=tower, layer=i // width, head=i % width) for i in order)
        for order in sorted(orders)
    )


STEPS = 1000
"""Number of t-SNE iterations (CAHP, step 3; default of scikit-learn). Doubling it doubles the time."""
FIRST_SPREAD = 1e-4
"""Standard deviation of the first coordinate of the initial points, as in scikit-learn with `init="pca"`.
Doubling it gives other points of similar quality."""
MAX_INTEGER_DISTANCE = 1 << 40
"""Largest distance as a whole number for k-medoids. Sums of up to 2^13 distances are at most 2^53, so they
are exact in float64. Doubling it allows half as many heads."""
OTHER_MACHINES = 2e-3
"""Relative difference of distances between a CPU and a GPU that groups should survive. Chosen by hand;
doubling it gives more warnings."""
MIN_CURVE_RISE = 1e-9
"""Minimum rise of a curve with a knee. For flatter curves the rounding of the polynomial would determine the
knee. Chosen by hand; doubling it matters only for curves that are flat up to rounding."""


def fitting_perplexity(requested: float, heads: int) -> float:
    """Return the requested perplexity if it is below N - 1, else (N - 1) / 3.

    Perplexity is the effective number of neighbors. Each head has N - 1 neighbors, and a third is customary.
    """
    return requested if requested < heads - 1 else (heads - 1) / 3


def embed(compared: HeadDistances, *, perplexity: float, seed: int) -> torch.Tensor:
    """Return heads as points (N, 2), float64, by t-SNE of their profiles.

    t-SNE is chaotic: a difference of 1e-7 in profiles or initial points, typical between two machines,
    changes groups like another seed. For 144 heads in six clear families and 20 groups, about half of the
    pairs agree (adjusted Rand index 0.5 to 0.7); for 48 heads without structure, few (0.1 to 0.4). Equal bits
    give equal points.

    Stored profiles are passed to t-SNE directly, as in the source. Otherwise t-SNE gets distances, and the
    first two principal components as initial points; from profiles it would compute the same components up to
    sign and rounding. The results of both forms therefore differ like results of two machines.

    Args:
        compared: Profiles or Gram matrix of the heads.
        perplexity: Perplexity of t-SNE, below N - 1.
        seed: Random seed, below `SEEDS`.

    Raises:
        DataError: If the points are not finite.
    """
    tsne_input = compared.distances if compared.profiles is None else compared.profiles
    # scikit-learn 1.9 squares precomputed distances itself, so they are passed unsquared.
    tsne = TSNE(
        n_components=2,
        max_iter=STEPS,
        perplexity=perplexity,
        random_state=seed,
        init="pca" if compared.gram is None else principal_start(compared.gram),
        metric="precomputed" if compared.profiles is None else "euclidean",
    )
    # Threads of scikit-learn add in varying order. With one thread equal inputs give equal bits, and for so
    # few points one thread is also the fastest.
    with threadpool_limits(limits=1):
        points = torch.from_numpy(tsne.fit_transform(tsne_input.numpy()))
    if not points.isfinite().all():
        raise DataError("t-SNE returns points that are not finite", hint="add `--embedding none`")
    return points.double()


def principal_start(gram: torch.Tensor) -> np.ndarray:
    """Return the first two principal components (N, 2), float32. The first has the spread `FIRST_SPREAD`.

    The sign of each component makes its largest absolute value positive.

    Args:
        gram: Inner products (N, N) of centered profiles.
    """
    values, vectors = torch.linalg.eigh(gram)
    points = (vectors * values.clamp(min=0).sqrt()).flip(-1)[:, :2]
    points = points * points.gather(0, points.abs().argmax(dim=0)[None]).sign()
    start: np.ndarray = (points / points[:, 0].std(correction=0) * FIRST_SPREAD).float().numpy()
    return start


class Clustering(NamedTuple):
    """Partition of N points into k groups.

    Attributes:
        medoids: Central point of each group, in increasing order.
        group: Group of each point, as an index of `medoids`, shape (N,).
    """

    medoids: tuple[int, ...]
    group: torch.Tensor

    def members(self) -> list[list[int]]:
        """Return the points of each group in increasing order."""
        return [(self.group == c).nonzero().flatten().tolist() for c in range(len(self.medoids))]


class Knee(NamedTuple):
    """Selected number of groups.

    Attributes:
        k: Number of groups.
        source: `kneed`, or `chord` if the curve has no knee.
        degree: Degree of the polynomial that smoothed the curve.
    """

    k: int
    source: str
    degree: int


def group_points(distances: torch.Tensor, k: int, *, seed: int) -> Clustering:
    """Group points by k-medoids with FasterPAM (Schubert and Rousseeuw 2021) from random medoids.

    Args:
        distances: Shape (N, N), finite.
        k: Number of groups, 1 to N.
        seed: Seed of the first medoids and of the order of swaps.
    """
    # Whole numbers have exact sums. In a group of two, either point may be the medoid; rounding would select
    # one of them, and then change a swap and all later swaps.
    steps = (
        distances * (MAX_INTEGER_DISTANCE / distances.max().clamp(min=torch.finfo(distances.dtype).tiny))
    ).round()
    # `n_cpu=1`, because the results of kmedoids depend on the number of threads.
    medoids = sorted(int(m) for m in kmedoids.fasterpam(steps.numpy(), k, random_state=seed, n_cpu=1).medoids)
    group = distances[:, medoids].argmin(dim=1)
    # Two medoids may have the same position; `argmin` would assign both to the first group.
    group[medoids] = torch.arange(k)
    return Clustering(tuple(medoids), group)


def depends_on_rounding(distances: torch.Tensor, grouped: Clustering, *, seed: int) -> bool:
    """Return whether distances with random relative changes up to `OTHER_MACHINES` would give other groups."""
    noise = torch.rand(distances.shape, generator=torch.Generator().manual_seed(seed), dtype=distances.dtype)
    change = OTHER_MACHINES * (2 * noise - 1).triu()
    nearby = group_points(distances * (1 + change + change.T), len(grouped.medoids), seed=seed)
    return {*map(tuple, nearby.members())} != {*map(tuple, grouped.members())}


def mean_simplified_silhouette(distances: torch.Tensor, grouped: Clustering) -> float:
    """Return the mean simplified silhouette MSS (CAHP, step 5; GB-AFS): the mean of (b - a) / max(a, b).

    a is the distance of a point to its own medoid, b its mean distance to the other medoids. The ordinary
    simplified silhouette uses the nearest other medoid instead. Points at distance 0 from their medoid are
    left out.

    Args:
        distances: Shape (N, N).
        grouped: At least two groups.

    Returns:
        MSS in [-1, 1]; 1 if all points are left out.
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
    """Return the groups and the MSS for each k from 2 to N - 1.

    Args:
        distances: Shape (N, N).
        seed: Seed of k-medoids.
        track: Wraps the range of k to report progress.

    Returns:
        Groups up to the first MSS of 1, and the MSS of all k. After the first MSS of 1 all values are 1.
    """
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
    """Return the knee of a concave increasing curve (Kneedle, Satopää et al. 2011, S = 1).

    The curve is first smoothed by a polynomial.

    Args:
        curve: MSS for k = 2, 3, ...; at least one value.
        degree: Degree of the polynomial. It is lowered to the number of values minus 1.

    Returns:
        The knee. For a curve without a knee, the lowest k with the largest MSS above the chord from the first
        to the last value.
    """
    degree = min(degree, len(curve) - 1)
    numbers = list(range(2, 2 + len(curve)))
    knee = None
    if len(curve) > 2 and max(curve) - min(curve) > MIN_CURVE_RISE:
        knee = KneeLocator(
            numbers,
            list(curve),
            curve="concave",
            direction="increasing",
            interp_method="polynomial",
            polynomial_degree=degree,
        ).knee
    if knee is not None:
        return Knee(int(knee), "kneed", degree)
    rise = (curve[-1] - curve[0]) / max(1, len(curve) - 1)
    above = [mss - curve[0] - rise * i for i, mss in enumerate(curve)]
    return Knee(2 + max(range(len(curve)), key=lambda i: (above[i], -i)), "chord", degree)
