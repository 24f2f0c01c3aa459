"""CAHP: groups heads by how well they separate classes and keeps one per group (Livertovsky, Somin, Singer 2026)."""

from __future__ import annotations

from dataclasses import replace

import torch

from hydractl.errors import DataError, UsageError
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadName
from hydractl.messages import counted
from hydractl.progress import Progress
from hydractl.scoring.cahp.clusters import (
    OTHER_MACHINES,
    Clustering,
    embed,
    find_knee,
    fitting_perplexity,
    group_points,
    hangs_on_rounding,
    silhouettes,
)
from hydractl.scoring.cahp.moments import SignatureMoments, class_moments
from hydractl.scoring.cahp.profile import HeadDistances, compare
from hydractl.scoring.cahp.settings import CahpSettings
from hydractl.scoring.gradients.gate_gradients import gate_gradients
from hydractl.scoring.job import Ranking, ScoreJob
from hydractl.scoring.normalize import min_max

FEWEST_HEADS = 3
SEEDS = 2**32
"""As many can scikit-learn and kmedoids begin with; of larger ones the last 32 bits count."""


def score_cahp(job: ScoreJob, progress: Progress) -> Ranking:
    """Group the heads of a tower and score each by its salience (CAHP, arXiv 2606.19150, steps 1 to 6).

    1. Each head's attention on each sample, without padding, becomes a signature (`cahp_signature`).
    2. The profile of a head has the Jeffries-Matusita distance of its signatures for each pair of classes
    (`cahp_profile`). 3. t-SNE maps each profile to a point in the plane (`cahp_embedding`), or profiles are compared
    directly. 4. Salience is |∂L/∂ξ| of gates on heads, averaged over batches and min-max scaled over all heads: 1 is the
    most salient. 5. k-medoids runs for every k; the knee of the mean simplified silhouette selects k (`cahp_clusters`),
    unless a budget fixes it. 6. The heads of a group are sorted by decreasing salience, or by increasing distance to the
    medoid. Groups are sorted by their first heads; ties go to the lower head.

    The reader of the clusters decides which heads are kept and that no layer is empty (step 7).

    Salience uses the first batches in the order of the data, as in the authors' code; `--salience-share 1` uses all.

    Only one tower can be scored, and its inputs must be the samples. A profile describes how a head's attention depends
    on the class of a sample, and profiles are comparable because they use the same tokens of the same samples. A text
    tower with the same prompts for every sample does not separate classes of samples, so a zero-shot model needs
    `--towers vision`.

    Raises:
        UsageError: If there are several towers, or the inputs of the tower are not the samples.
        DataError: If the data are not suitable, or the tower has too few heads.
    """
    job = replace(job, seed=job.seed % SEEDS)
    settings = job.set_for(CahpSettings)
    tower = _only_tower(job)
    heads = job.architecture.towers[tower].layers * job.architecture.towers[tower].num_heads
    if heads < FEWEST_HEADS:
        raise DataError(f"`cahp` needs at least {FEWEST_HEADS} heads, but the model has {heads}")
    progress.step("Computing attention maps by class")
    moments = class_moments(job, tower, size=settings.signature_size)
    _warn_of_single_samples(moments, progress)
    compared = compare(moments, progress, device=job.model.device)
    share = max(1, int(settings.salience_share * moments.batches))
    progress.step(f"Computing the salience on {share} of {counted(moments.batches, 'batch', 'batches')}")
    salience = min_max({tower: gate_gradients(job, batches=share)[tower].abs().mean(dim=0).tolist()})[tower]
    distances, results = _placed(compared, settings, heads, job.seed, progress)
    grouped, cluster_results = _grouped(distances, job, settings, progress)
    if hangs_on_rounding(distances, grouped, seed=job.seed):
        progress.warn(
            f"heads lie between groups: distances that differ by {OTHER_MACHINES:.1%}, as on another device, would give other groups"
        )
    return Ranking(
        scores={tower: salience},
        clusters=_clusters(tower, grouped, torch.tensor(salience, dtype=torch.float64), distances, settings),
        results={"form": compared.form.value, **results, **cluster_results},
    )


def _only_tower(job: ScoreJob) -> str:
    """Return the tower to score."""
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


def _warn_of_single_samples(moments: SignatureMoments, progress: Progress) -> None:
    single = sum(count == 1 for count in moments.counts)
    if single:
        progress.warn(
            f"{single} of {counted(len(moments.counts), 'class', 'classes')} have a single sample, so their "
            "variance is set to 1e-6 and the distances between heads are too large"
        )


def _placed(
    compared: HeadDistances, settings: CahpSettings, heads: int, seed: int, progress: Progress
) -> tuple[torch.Tensor, dict[str, OptionValue]]:
    """Return the distances (N, N) for grouping, and the perplexity used."""
    if settings.perplexity is None:  # no t-SNE
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
    distances: torch.Tensor, job: ScoreJob, settings: CahpSettings, progress: Progress
) -> tuple[Clustering, dict[str, OptionValue]]:
    """Return the groups, and how their number was determined."""
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
    choice_of_k: dict[str, OptionValue] = {"k": knee.k, "k_from": knee.source.value, "degree": knee.degree}
    return grouped, choice_of_k | {"mss": tuple(curve)}


def _clusters(
    tower: str, grouped: Clustering, salience: torch.Tensor, distances: torch.Tensor, settings: CahpSettings
) -> tuple[tuple[HeadName, ...], ...]:
    """Return the heads of each group in order."""
    orders = []
    for medoid, members in zip(grouped.medoids, grouped.members(), strict=True):
        ranks = {i: _rank(i, medoid, salience, distances, settings) for i in members}
        orders.append(sorted(members, key=lambda i, ranks=ranks: ranks[i]))  # type: ignore[misc]
    width = salience.shape[1]
    return tuple(
        tuple(HeadName(tower=tower, layer=i // width, head=i % width) for i in order)
        for order in sorted(orders)
    )


def _rank(
    head: int, medoid: int, salience: torch.Tensor, distances: torch.Tensor, settings: CahpSettings
) -> tuple[float, int]:
    """Return the sort key of a group's heads."""
    if settings.representative == "medoid":
        # the medoid leads even if a head of a lower number lies on the same spot
        return (-1.0 if head == medoid else float(distances[head, medoid]), head)
    return (-float(salience.flatten()[head]), head)
