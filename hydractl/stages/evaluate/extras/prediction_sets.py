"""Prediction sets: fitted on the ID set or stored by a model, and what they are like on the ID set.

Axes: N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hydractl.manifest.document import Fingerprint, Value
from hydractl.manifest.guarantees import ClassHits, PredictionSets, SetNumbers
from hydractl.manifest.terms import MOST_CLASSES
from hydractl.metrics.conformal import binomial_interval, class_sets, fit_thresholds, nonconformity
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.per_sample import StoredPredictions, at_labels, at_once, mean_probabilities
from hydractl.metrics.registry import SET_COVERAGE, SET_SIZE, needing
from hydractl.stages.evaluate.config import SetOptions


def fit_sets(
    options: SetOptions, predictions: StoredPredictions, labels: Tensor, data: Fingerprint
) -> PredictionSets | None:
    """Return the prediction sets of a row, fitted on its predictions of the ID set; None if none are asked for."""
    if options.sets is None:
        return None
    method, penalties = options.method, options.penalties
    scores = torch.cat(
        [at_labels(nonconformity(p, method, **penalties), y) for p, y in _parts(predictions, labels)]
    )
    classes = predictions.shape[2] if options.sets_by_class else None
    return PredictionSets(
        method=method,
        coverage=options.sets,
        thresholds=fit_thresholds(scores, labels, method, options.sets, classes=classes),
        count=len(labels),
        data=data,
        **penalties,
    )


def measure_sets(
    rule: PredictionSets,
    predictions: StoredPredictions,
    labels: Tensor,
    names: Sequence[str],
    data: Fingerprint,
) -> SetNumbers:
    """Return what prediction sets are like on the ID set.

    Args:
        rule: Which sets.
        predictions: Of the ID set, scaled.
        labels: Shape (N,), int64.
        names: Of the C classes.
        data: The ID set.
    """
    parts = [
        (sets.sum(1), sets.gather(1, y.unsqueeze(1)).squeeze(1))
        for p, y in _parts(predictions, labels)
        for sets in [class_sets(p, rule)]
    ]
    sizes, covered = map(torch.cat, zip(*parts, strict=True))
    counts = torch.bincount(labels, minlength=len(names))
    hits = torch.bincount(labels[covered], minlength=len(names))
    present = counts.nonzero().flatten()
    order = (hits.double() / counts.clamp(min=1))[present].sort(stable=True).indices
    return SetNumbers(
        rule=rule,
        is_fitted_here=rule.data.sha256 == data.sha256,
        count=len(labels),
        covered=int(covered.sum()),
        empty=int((sizes == 0).sum()),
        single=int((sizes == 1).sum()),
        mean_size=float(sizes.double().mean()),
        interval=binomial_interval(int(covered.sum()), len(labels)),
        classes=tuple(
            ClassHits(index=i, name=names[i], count=int(counts[i]), hits=int(hits[i]))
            for i in sorted(present[order][:MOST_CLASSES].tolist())
        ),
    )


def set_values(metrics: Sequence[str], sets: SetNumbers | None) -> dict[str, Value]:
    """Return the selected metrics of a row's prediction sets; on the samples of their fit no coverage, which holds by construction."""
    if sets is None:
        return {}
    low, high = sets.interval
    coverage = Value(value=sets.covered / sets.count, low=low, high=high)
    values = {SET_SIZE: Value(value=sets.mean_size)} | (
        {} if sets.is_fitted_here else {SET_COVERAGE: coverage}
    )
    return {name: values[name] for name in needing(metrics, MetricNeeds.SETS) if name in values}


def _parts(predictions: StoredPredictions, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield mean probabilities, rounded as `predict` has them, and labels in chunks of samples."""
    size = at_once(predictions)
    for part, part_labels in zip(predictions.split(size), labels.split(size), strict=True):
        yield mean_probabilities(part), part_labels
