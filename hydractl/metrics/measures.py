"""From members' predictions to the numbers of a report. Pure: tensors and names in, values out.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hydractl.manifest import Value
from hydractl.metrics.calibration import adaptive_ece, ece
from hydractl.metrics.classification import accuracy, brier, nll
from hydractl.metrics.diversity import disagreement, mutual_information, predictive_entropy
from hydractl.metrics.needs import DIVERSITY, LABELLED, RANKING
from hydractl.metrics.ood import (
    aupr_in,
    aupr_in_trapezoid,
    aupr_out,
    aupr_out_trapezoid,
    auroc,
    fpr_at_tpr,
    msp_score,
)
from hydractl.metrics.resampling import labelled_statistics, ranking_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from hydractl.metrics.resampling import Resampling

CHUNK = 4096  # samples that are in float64 at once

_ON_PROBS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "brier": brier,
    "ece": ece,
    "adaptive_ece": adaptive_ece,
}
_ON_SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "auroc": auroc,
    "fpr95": fpr_at_tpr,
    "aupr": aupr_out,
    "aupr_in": aupr_in,
    "aupr_out_trapezoid": aupr_out_trapezoid,
    "aupr_in_trapezoid": aupr_in_trapezoid,
}
_ON_MEMBERS: dict[str, Callable[[Tensor], float]] = {
    "mutual_information": mutual_information,
    "disagreement": disagreement,
    "entropy": predictive_entropy,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row's numbers, apart from its costs; fields as in `manifest.Row`."""

    values: dict[str, Value]
    ood: dict[str, dict[str, Value]]
    means: dict[str, dict[str, float]]


def mixture_log_probs(member_log_probs: Tensor) -> Tensor:
    """Return log mean_m p_m, the ensemble's prediction.

    Args:
        member_log_probs: Shape (M, N, C), natural logarithms.

    Returns:
        Shape (N, C), float64.
    """
    log_m = math.log(member_log_probs.shape[0])
    parts = [torch.logsumexp(part.double(), 0) - log_m for part in member_log_probs.split(CHUNK, 1)]
    return torch.cat(parts)


def measure(
    id_log_probs: Tensor,
    labels: Tensor,
    ood_log_probs: Mapping[str, Tensor],
    *,
    metrics: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    resampling: Resampling,
) -> Measured:
    """Return every chosen number of one model or ensemble that follows from its predictions.

    Args:
        id_log_probs: Members' log-probabilities on the ID set, shape (M, N, C).
        labels: Shape (N,), int64, in 0..C-1.
        ood_log_probs: The same of each OOD set, shape (M, N', C).
        metrics: Names from `metrics.table`; those of costs are passed over.
        groups: Which OOD sets `near`, `far` and so on mean; a mean is the plain mean over data sets.
        resampling: How intervals are made.
    """
    log_probs = mixture_log_probs(id_log_probs)
    values = _labelled(log_probs, labels, metrics, resampling)
    values |= _diversity(id_log_probs, metrics)
    id_scores = msp_score(log_probs.exp())
    ood = {
        name: _ranking(id_scores, msp_score(mixture_log_probs(found).exp()), metrics, resampling)
        | _diversity(found, metrics)
        for name, found in ood_log_probs.items()
    }
    means = {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names) for metric in ood[names[0]]
        }
        for group, names in groups.items()
        if names
    }
    return Measured(values=values, ood=ood, means=means)


def _labelled(
    log_probs: Tensor, labels: Tensor, metrics: Sequence[str], resampling: Resampling
) -> dict[str, Value]:
    chosen = [m for m in LABELLED if m in metrics]
    probs = log_probs.exp()
    statistics = labelled_statistics(log_probs, labels) if resampling.resamples else {}
    return {
        m: resampling.value(
            nll(log_probs, labels) if m == "nll" else _ON_PROBS[m](probs, labels),
            len(labels),
            statistics.get(m),
        )
        for m in chosen
    }


def _ranking(
    id_scores: Tensor, ood_scores: Tensor, metrics: Sequence[str], resampling: Resampling
) -> dict[str, Value]:
    chosen = [m for m in RANKING if m in metrics]
    statistics = ranking_statistics(id_scores, ood_scores) if resampling.resamples and chosen else {}
    return {
        m: resampling.value(
            _ON_SCORES[m](id_scores, ood_scores), len(id_scores), statistics.get(m), others=len(ood_scores)
        )
        for m in chosen
    }


def _diversity(member_log_probs: Tensor, metrics: Sequence[str]) -> dict[str, Value]:
    count = member_log_probs.shape[1]
    found = dict.fromkeys((m for m in DIVERSITY if m in metrics), 0.0)
    for part in member_log_probs.split(CHUNK, 1):
        probs = part.double().exp()
        for m in found:
            found[m] += _ON_MEMBERS[m](probs) * probs.shape[1] / count
    return {m: Value(value=v, count=count) for m, v in found.items()}
