"""The curves that figures of a report show, each of a bounded number of exact points.

Axes: N samples of ID and N' of OOD data, P points.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hydractl.manifest.report import MOST_POINTS, Bins, Curves, Line
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.classification import BINS
from hydractl.metrics.compute import scored
from hydractl.metrics.ood_scores import MSP
from hydractl.metrics.per_sample import StoredPredictions, places

PARTS = 20
"""Of [0, 1], in which confidences are counted."""


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
        score: The name of what ROC curves rank samples by.
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
    """Return bins of (N,) confidences and hits, those of `classification.ece`; the last one holds what is exactly 1."""
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
    """Return how many (N,) confidences lie in each of some equal parts of [0, 1], [lo, hi) and the last one with its end."""
    index = (confidence * parts).long().clamp(0, parts - 1)
    return tuple(torch.bincount(index, minlength=parts).tolist())


def risk_coverage(confidence: Tensor, hits: Tensor) -> Line:
    """Return the share of wrong answers (y) among the share (x) of (N,) samples that are answered, the most confident first.

    Samples of equal confidence are answered together (Geifman and El-Yaniv 2017, section 2).
    """
    ordered, order = confidence.sort(descending=True)
    wrong = (~hits.bool())[order].cumsum(0).double()
    last = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
    number = torch.arange(1, len(ordered) + 1, dtype=torch.float64)[last]
    coverage, risk = number / len(ordered), wrong[last] / number
    return _line(coverage, risk, along=coverage)


def roc(*, inside: Tensor, outside: Tensor) -> Line:
    """Return the share of OOD that is flagged (y) by the share of ID that is (x), of `per_sample.places` (N,) and (N',).

    A line between two of all points is what samples of equal score come to; trapezoids below all of them add up to the AUROC.
    """
    size = int(max(inside.max(), outside.max())) + 1
    x, y = (
        torch.cat([set_places.new_zeros(1), torch.bincount(set_places, minlength=size).cumsum(0)]).double()
        / len(set_places)
        for set_places in (inside, outside)
    )
    return _line(x, y, along=x + y)


def _line(x: Tensor, y: Tensor, *, along: Tensor) -> Line:
    """Return (P,) points, of many some that are about evenly spaced along what increases, both ends among them."""
    if len(x) > MOST_POINTS:
        positions = torch.linspace(float(along[0]), float(along[-1]), MOST_POINTS, dtype=torch.float64)
        index = torch.searchsorted(along, positions).clamp(max=len(x) - 1)
        index[-1] = len(x) - 1
        x, y = x[index.unique()], y[index.unique()]
    return Line(x=tuple(x.tolist()), y=tuple(y.tolist()))
