"""From members' predictions to the numbers of a report. Pure: tensors and names in, values out.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl.manifest.report import Value
from hydractl.metrics.metric import Metric, Needs
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.samples import answers, ensemble_log_probs, places
from hydractl.metrics.scores import msp_score
from hydractl.metrics.table import METRICS, needing

SAMPLES_AT_ONCE = 4096  # in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A row's numbers, apart from its costs; fields as in `manifest.Row`."""

    values: dict[str, Value]
    ood: dict[str, dict[str, Value]]
    means: dict[str, dict[str, float]]


def measure(
    id_log_probs: Tensor,
    labels: Tensor,
    ood_log_probs: Mapping[str, Tensor],
    *,
    metrics: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    resampling: Resampling,
) -> Numbers:
    """Return every chosen number of one model or ensemble that follows from its predictions.

    Args:
        id_log_probs: Members' log-probabilities on the ID set, shape (M, N, C).
        labels: Shape (N,), int64, in 0..C-1.
        ood_log_probs: The same of each OOD set, shape (M, N', C).
        metrics: Names from `table.METRICS`; those that do not follow from predictions are passed over.
        groups: Which OOD sets `near`, `far` and so on mean; a mean is the plain mean over data sets.
        resampling: How intervals are made.
    """
    labelled, ranking, diverse = (
        [METRICS[name] for name in needing(metrics, needs)]
        for needs in (Needs.LABELS, Needs.OOD, Needs.MEMBERS)
    )
    log_probs = _predictions(id_log_probs)
    probs = log_probs.exp()
    values = resampling.values(labelled, answers(probs, labels, log_probs=log_probs))
    values |= _diversity(id_log_probs, diverse)
    ood = {}
    for name, found in ood_log_probs.items():
        by_score = places(msp_score(probs), msp_score(_predictions(found).exp()))
        sets = ({side: own} for side, own in by_score.items())
        ood[name] = resampling.values(ranking, *sets) | _diversity(found, diverse)
    means = {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names) for metric in ood[names[0]]
        }
        for group, names in groups.items()
        if names
    }
    return Numbers(values=values, ood=ood, means=means)


def _predictions(member_log_probs: Tensor) -> Tensor:
    """Return what the ensemble predicts, (N, C), log-probabilities in float64."""
    parts = member_log_probs.split(SAMPLES_AT_ONCE, 1)
    return torch.cat([ensemble_log_probs(part.double()) for part in parts])


def _diversity(member_log_probs: Tensor, metrics: Sequence[Metric]) -> dict[str, Value]:
    count = member_log_probs.shape[1]
    found = dict.fromkeys((m.name for m in metrics), 0.0)
    for part in member_log_probs.split(SAMPLES_AT_ONCE, 1) if metrics else ():
        sample = {"member_probs": part.double().exp()}
        for metric in metrics:
            found[metric.name] += float(metric.of(sample)) * part.shape[1] / count
    return {name: Value(value=value, count=count) for name, value in found.items()}
