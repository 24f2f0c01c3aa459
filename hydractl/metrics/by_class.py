"""Answers class by class. Axes: N samples, C classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydractl.manifest.answers import ByClass, ClassHits, Confusion
from hydractl.manifest.terms import MOST_CLASSES, MOST_CONFUSIONS


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
