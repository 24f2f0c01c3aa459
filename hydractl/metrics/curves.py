"""Curves for the figures of a report, with a bounded number of points.

Axes: N ID samples, N' OOD samples, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydractl.manifest.guarantees import ByClass, ClassHits, Confusion
from hydractl.manifest.report import MOST_POINTS, Bins, Curves, Line
from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS
from hydractl.metrics.classification import BINS, wrong_and_all
from hydractl.metrics.compute import answer_scores, ood_score
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import StoredPredictions, certainty_ranks, places


def curves_of(
    id_predictions: StoredPredictions,
    answers: Mapping[str, Tensor],
    ood_predictions: Mapping[str, StoredPredictions],
    score: str,
) -> Curves:
    """Return the curves of one model or ensemble.

    Args:
        id_predictions: Predictions on the ID set.
        answers: Result of `per_sample.answers` on the ID set.
        ood_predictions: Predictions on each OOD set.
        score: OOD score of the risk-coverage curve and the ROC curves.
    """
    confidence, hits = answers["confidence"], answers["hits"]
    uncertainty = -confidence if score == MSP else answer_scores(id_predictions, score)
    id_scores = ood_score(id_predictions, score) if ood_predictions else confidence
    return Curves(
        reliability=reliability(confidence, hits),
        risk=risk_coverage(uncertainty[~uncertainty.isnan()], hits),
        roc={
            name: roc(**places(id_scores, ood_score(set_predictions, score)))
            for name, set_predictions in ood_predictions.items()
        },
    )


def reliability(confidence: Tensor, hits: Tensor, *, bins: int = BINS) -> Bins:
    """Return the bins of `classification.ece` for confidences and hits of shape (N,).

    The last bin contains only confidences of exactly 1. Confidence and accuracy of empty bins are 0.
    """
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float32)
    index = torch.bucketize(confidence.float(), edges, right=True) - 1
    count = torch.bincount(index, minlength=bins + 1)
    sums = (
        torch.bincount(index, weights.double(), bins + 1) / count.clamp(min=1)
        for weights in (confidence, hits)
    )
    means = (tuple(bin_means.clamp(max=1.0).tolist()) for bin_means in sums)
    return Bins(count=tuple(count.tolist()), confidence=next(means), accuracy=next(means))


def risk_coverage(scores: Tensor, hits: Tensor, *, accepted: int = 0) -> Line:
    """Return the error rate (y) among the fraction (x) of N answers that a threshold on the OOD score accepts.

    Answers with equal score form one point (Geifman and El-Yaniv 2017, section 2). The points are those of the
    metrics `risk80` and `coverage5`.

    Args:
        scores: OOD score of each answer, shape (N,), finite; lower is more certain.
        hits: Whether the answer is correct, shape (N,), boolean or 0 and 1.
        accepted: Number of answers that a threshold accepts, whose point is kept; 0 for none.
    """
    wrong, every = (x.cumsum(-1) for x in wrong_and_all(certainty_ranks(scores, hits), hits))
    coverage = every / len(scores)
    return _line(coverage, wrong / every, along=coverage, point=accepted / len(scores))


def roc(*, inside: Tensor, outside: Tensor) -> Line:
    """Return the ROC curve: flagged fraction of OOD samples (y) against flagged fraction of ID samples (x).

    Samples with equal score form one straight line, so the trapezoids below the full curve sum to the AUROC.

    Args:
        inside: Ranks of ID samples, shape (N,), from `per_sample.places`.
        outside: Ranks of OOD samples, shape (N',), from `per_sample.places`.
    """
    size = int(max(inside.max(), outside.max())) + 1
    x, y = (
        torch.cat([set_places.new_zeros(1), torch.bincount(set_places, minlength=size).cumsum(0)]).double()
        / len(set_places)
        for set_places in (inside, outside)
    )
    return _line(x, y, along=x + y)


def _line(x: Tensor, y: Tensor, *, along: Tensor, point: float = 0.0) -> Line:
    """Return at most `MOST_POINTS` points of a curve, including both ends and the point at `point`.

    The points are about evenly spaced in `along`, which increases.
    """
    if len(x) > MOST_POINTS:
        even = torch.linspace(float(along[0]), float(along[-1]), MOST_POINTS - 1, dtype=torch.float64)
        positions = torch.cat([even.new_tensor([point]), even])
        index = torch.searchsorted(along, positions).clamp(max=len(x) - 1)
        index[-1] = len(x) - 1
        x, y = x[index.unique()], y[index.unique()]
    return Line(x=tuple(x.tolist()), y=tuple(y.tolist()))


def by_class(
    predicted: Tensor, labels: Tensor, names: Sequence[str], *, same_classes_as: ByClass | None = None
) -> ByClass:
    """Return the number of correct answers for each class, and the most frequent confusions.

    Args:
        predicted: Shape (N,), int64, in 0..C-1.
        labels: Shape (N,), int64, in 0..C-1, N >= 1.
        names: Names of the C classes.
        same_classes_as: Results whose classes are selected. `None` selects the `MOST_CLASSES` classes with
            the lowest accuracy among classes with samples; of equal classes the first.

    Returns:
        Classes in the order of their index, and at most `MOST_CONFUSIONS` confusions, the most frequent
        first.
    """
    counts = torch.bincount(labels, minlength=len(names))
    hits = torch.bincount(labels[predicted == labels], minlength=len(names))
    present = counts.nonzero().flatten()
    order = (hits.double() / counts.clamp(min=1))[present].sort(stable=True).indices
    worst = sorted(present[order][:MOST_CLASSES].tolist())
    chosen = worst if same_classes_as is None else [c.index for c in same_classes_as.classes]
    wrong = predicted != labels
    pairs, frequency = torch.unique(torch.stack([labels[wrong], predicted[wrong]]), dim=1, return_counts=True)
    most = frequency.sort(descending=True, stable=True).indices[:MOST_CONFUSIONS]
    return ByClass(
        total=len(present),
        classes=tuple(
            ClassHits(index=i, name=names[i], count=int(counts[i]), hits=int(hits[i])) for i in chosen
        ),
        confusions=tuple(
            Confusion(label=names[label], answer=names[answer], count=number)
            for (label, answer), number in zip(
                pairs[:, most].T.tolist(), frequency[most].tolist(), strict=True
            )
        ),
    )
