"""Curves for the figures of a report, each with a bounded number of exact points.

Axes: N samples of ID and N' of OOD data, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydractl.manifest.guarantees import ByClass, ClassHits, Confusion
from hydractl.manifest.report import MOST_POINTS, Bins, Curves, Line
from hydractl.manifest.terms import ID_NAME, MOST_CLASSES, MOST_CONFUSIONS
from hydractl.metrics.classification import BINS
from hydractl.metrics.compute import scored
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import StoredPredictions, places

PARTS = 20
"""Number of bins of [0, 1] in the histogram of confidence."""


def curves_of(
    tested: StoredPredictions,
    answers: Mapping[str, Tensor],
    foreign: Mapping[str, StoredPredictions],
    score: str,
) -> Curves:
    """Return the curves of one model or ensemble.

    Args:
        tested: On the ID set.
        answers: Of these, as `per_sample.answers`.
        foreign: On each OOD set.
        score: Name of the OOD score that ROC curves rank samples by.
    """
    confidence, hits = answers["confidence"], answers["hits"]
    id_scores = scored(tested, score) if foreign else confidence
    return Curves(
        reliability=reliability(confidence, hits),
        confidence={ID_NAME: histogram(confidence)}
        | {name: histogram(-scored(set_predictions, MSP)) for name, set_predictions in foreign.items()},
        risk=risk_coverage(confidence, hits),
        roc={
            name: roc(**places(id_scores, scored(set_predictions, score)))
            for name, set_predictions in foreign.items()
        },
    )


def reliability(confidence: Tensor, hits: Tensor, *, bins: int = BINS) -> Bins:
    """Return the bins of `classification.ece` for confidences and hits (N,); the last bin has confidences of exactly 1."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float32)
    index = torch.bucketize(confidence.float(), edges, right=True) - 1
    count = torch.bincount(index, minlength=bins + 1)
    sums = (
        torch.bincount(index, weights.double(), bins + 1) / count.clamp(min=1)
        for weights in (confidence, hits)
    )
    means = (tuple(bin_means.clamp(max=1.0).tolist()) for bin_means in sums)
    return Bins(count=tuple(count.tolist()), confidence=next(means), accuracy=next(means))


def histogram(confidence: Tensor, *, parts: int = PARTS) -> tuple[int, ...]:
    """Return a histogram of confidences (N,) over equal parts [lo, hi) of [0, 1]; the last part includes 1."""
    index = (confidence * parts).long().clamp(0, parts - 1)
    return tuple(torch.bincount(index, minlength=parts).tolist())


def risk_coverage(confidence: Tensor, hits: Tensor) -> Line:
    """Return the error rate (y) among the fraction (x) of the most confident of N samples.

    Samples with equal confidence are added together (Geifman and El-Yaniv 2017, section 2).
    """
    ordered, order = confidence.sort(descending=True)
    wrong = (~hits.bool())[order].cumsum(0).double()
    last = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
    number = torch.arange(1, len(ordered) + 1, dtype=torch.float64)[last]
    coverage, risk = number / len(ordered), wrong[last] / number
    return _line(coverage, risk, along=coverage)


def roc(*, inside: Tensor, outside: Tensor) -> Line:
    """Return the ROC curve, OOD samples flagged (y) against ID samples flagged (x), from `per_sample.places` (N,) and (N',).

    Samples with equal score give one straight line; the trapezoids below the full curve sum to the AUROC.
    """
    size = int(max(inside.max(), outside.max())) + 1
    x, y = (
        torch.cat([set_places.new_zeros(1), torch.bincount(set_places, minlength=size).cumsum(0)]).double()
        / len(set_places)
        for set_places in (inside, outside)
    )
    return _line(x, y, along=x + y)


def _line(x: Tensor, y: Tensor, *, along: Tensor) -> Line:
    """Return a subset of P points, approximately evenly spaced along the increasing axis, including both ends."""
    if len(x) > MOST_POINTS:
        positions = torch.linspace(float(along[0]), float(along[-1]), MOST_POINTS, dtype=torch.float64)
        index = torch.searchsorted(along, positions).clamp(max=len(x) - 1)
        index[-1] = len(x) - 1
        x, y = x[index.unique()], y[index.unique()]
    return Line(x=tuple(x.tolist()), y=tuple(y.tolist()))


def by_class(
    predicted: Tensor, labels: Tensor, names: Sequence[str], *, like: ByClass | None = None
) -> ByClass:
    """Return how often answers are right for each class that has samples, and the most frequent wrong ones.

    Args:
        predicted: Shape (N,), int64, in 0..C-1.
        labels: Shape (N,), likewise, N >= 1.
        names: Of the C classes.
        like: What to show the same classes as; None for the `MOST_CLASSES` with the lowest accuracy, of equal ones the first.
    """
    counts = torch.bincount(labels, minlength=len(names))
    hits = torch.bincount(labels[predicted == labels], minlength=len(names))
    present = counts.nonzero().flatten()
    order = (hits.double() / counts.clamp(min=1))[present].sort(stable=True).indices
    worst = sorted(present[order][:MOST_CLASSES].tolist())
    chosen = worst if like is None else [c.index for c in like.classes]
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
