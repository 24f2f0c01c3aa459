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
from hydractl.metrics.samples import Responses, answers, ensemble_log_probs, places
from hydractl.metrics.scores import SCORES, Score, number_name
from hydractl.metrics.table import METRICS, needing

SAMPLES_AT_ONCE = 4096  # in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A row's numbers, apart from its costs and means; fields as in `manifest.Row`."""

    values: dict[str, Value]
    ood: dict[str, dict[str, Value]]


def measure(
    tested: Responses,
    labels: Tensor,
    foreign: Mapping[str, Responses],
    *,
    metrics: Sequence[str],
    scores: Sequence[str],
    resampling: Resampling,
) -> Numbers:
    """Return every chosen number of one model or ensemble that follows from its predictions.

    Args:
        tested: On the ID set.
        labels: Shape (N,), int64, in 0..C-1.
        foreign: On each OOD set.
        metrics: Names from `table.METRICS`; those that do not follow from predictions are passed over.
        scores: Names from `scores.SCORES`: what metrics of OOD data rank samples by, called as `number_name` says.
        resampling: How intervals are made, on the same resamples for every score.
    """
    labelled, ranking, diverse = (
        [METRICS[name] for name in needing(metrics, needs)]
        for needs in (Needs.LABELS, Needs.OOD, Needs.MEMBERS)
    )
    log_probs = torch.cat([ensemble_log_probs(p.log_probs.double()) for p in tested.split(SAMPLES_AT_ONCE)])
    values = resampling.values(labelled, answers(log_probs.exp(), labels, log_probs=log_probs))
    values |= _diversity(tested, diverse)
    ood: dict[str, dict[str, Value]] = {name: {} for name in foreign}
    for score in scores if ranking and foreign else ():
        own = scored(tested, SCORES[score])
        for name, found in foreign.items():
            by_score = places(own, scored(found, SCORES[score]))
            ranked = resampling.values(ranking, *({side: each} for side, each in by_score.items()))
            ood[name] |= {number_name(metric, score, scores): value for metric, value in ranked.items()}
    for name, found in foreign.items():
        ood[name] |= _diversity(found, diverse)
    return Numbers(values=values, ood=ood)


def means(
    ood: Mapping[str, Mapping[str, Value]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return the plain mean over data sets of every number, for each group with a set."""
    return {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names) for metric in ood[names[0]]
        }
        for group, names in groups.items()
        if names
    }


def scored(found: Responses, score: Score) -> Tensor:
    """Return a score of every sample, (N,), float64."""
    parts = found.split(SAMPLES_AT_ONCE)
    return torch.cat([score.compute(p.logits() if score.raw else p.log_probs.double()) for p in parts])


def _diversity(predictions: Responses, metrics: Sequence[Metric]) -> dict[str, Value]:
    count = predictions.log_probs.shape[1]
    found = dict.fromkeys((m.name for m in metrics), 0.0)
    for part, _ in predictions.split(SAMPLES_AT_ONCE) if metrics else ():
        sample = {"member_probs": part.double().exp()}
        for metric in metrics:
            found[metric.name] += float(metric.of(sample)) * part.shape[1] / count
    return {name: Value(value=value, count=count) for name, value in found.items()}
