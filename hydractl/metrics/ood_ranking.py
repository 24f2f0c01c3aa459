"""Ranking metrics of OOD detection, for one score per sample.

OOD is the positive class, unless the name has `in`. All metrics are computed from the ranks of samples by
score (`per_sample.places`), where rank 0 is the most OOD. Importing this module does not load torch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

TPR = 0.95
"""Fraction of OOD samples that FPR95 flags, and of ID samples that `accepted95` accepts. Other fractions are
other metrics."""


def auroc(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the probability that an OOD sample has a higher score than an ID sample, in [0, 1].

    Ties count one half. The Mann-Whitney statistic is counted in integers until the last division, so equal
    rankings give bit-identical results on every device.

    Args:
        inside: Ranks of ID samples, shape (..., N), int64; negative for padding.
        outside: Ranks of OOD samples, shape (..., N'), int64; negative for padding.

    Returns:
        Shape (...), float64; NaN if there are no ID or no OOD samples.
    """
    ids, oods = counts_by_rank(inside, outside)
    number = ids.sum(-1, keepdim=True)
    beaten = 2 * (number - ids.cumsum(-1)) + ids
    return (oods * beaten).sum(-1).double() / (2 * number.squeeze(-1) * oods.sum(-1))


def fpr_at_tpr(inside: Tensor, outside: Tensor, *, tpr: float = TPR) -> Tensor:
    """Return the flagged fraction of ID samples at the highest threshold that flags `tpr` of OOD, in [0, 1].

    OpenOOD's FPR@95: the first point of the ROC curve with at least `tpr`, without interpolation. Samples at
    the threshold are flagged.

    Args:
        inside: As in `auroc`.
        outside: As in `auroc`.
        tpr: Fraction of OOD samples to flag, in (0, 1].

    Returns:
        As in `auroc`.

    Raises:
        ValueError: If `tpr` is out of range.
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be in (0, 1], got {tpr}")
    return _false_positives(*counts_by_rank(inside, outside), tpr)


def accepted_at_tpr(inside: Tensor, outside: Tensor, *, tpr: float = TPR) -> Tensor:
    """Return the accepted fraction of OOD samples at the lowest threshold that accepts `tpr` of ID, in [0, 1].

    The false-positive rate with ID as the positive class. Samples at the threshold are accepted. Arguments as
    in `fpr_at_tpr`.
    """
    return _false_positives(*counts_by_rank(outside, inside, reverse=True), tpr)


def aupr_out(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the average precision with OOD as the positive class, in [0, 1]; arguments as in `auroc`.

    The sum of precision over steps of recall, without interpolation, as in scikit-learn's
    average_precision_score and torchmetrics' BinaryAveragePrecision. Samples with equal score form one step.
    A random score gives the fraction of OOD samples. Reports use this AUPR.
    """
    return _steps(*counts_by_rank(inside, outside))


def aupr_in(inside: Tensor, outside: Tensor) -> Tensor:
    """Return the average precision with ID as the positive class and the negated score; see `aupr_out`."""
    return _steps(*counts_by_rank(outside, inside, reverse=True))


def aupr_out_trapezoid(inside: Tensor, outside: Tensor) -> Tensor:
    """Return OpenOOD's AUPR_OUT, in [0, 1]; arguments as in `auroc`.

    The area of trapezoids under precision over recall, with OOD as the positive class. Linear interpolation
    overestimates the area (Davis and Goadrich 2006), so use this metric only for comparison with OpenOOD's
    tables.
    """
    return _trapezoids(*counts_by_rank(inside, outside))


def aupr_in_trapezoid(inside: Tensor, outside: Tensor) -> Tensor:
    """Return OpenOOD's AUPR_IN, with ID as the positive class; see `aupr_out_trapezoid`."""
    return _trapezoids(*counts_by_rank(outside, inside, reverse=True))


def _false_positives(negatives: Tensor, positives: Tensor, tpr: float) -> Tensor:
    """Return the share of negative samples up to the first rank with `tpr` of the positive samples."""
    flagged, caught = (
        counts.cumsum(-1).double() / counts.sum(-1, keepdim=True) for counts in (negatives, positives)
    )
    first = (caught < tpr).sum(-1, keepdim=True)
    return flagged.gather(-1, first).squeeze(-1).where(caught[..., -1] == 1, math.nan)


def counts_by_rank(negative: Tensor, positive: Tensor, *, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """Return the number of negative and positive samples at each of P >= 1 ranks, shape (..., P), int64.

    Args:
        negative: Ranks of negative samples, shape (..., N), int64; negative for padding.
        positive: Ranks of positive samples, shape (..., N'), int64; negative for padding.
        reverse: Whether the last rank comes first.
    """
    size = max(0, int(negative.max()), int(positive.max())) + 2
    counts_by_kind = [
        places.new_zeros(*places.shape[:-1], size).scatter_add_(
            -1, places + 1, places.new_ones(1).expand_as(places)
        )[..., 1:]
        for places in (negative, positive)
    ]
    negatives, positives = (counts.flip(-1) for counts in counts_by_kind) if reverse else counts_by_kind
    return negatives, positives


def _curve(negatives: Tensor, positives: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and recall, (..., P + 1), float64, from the lowest threshold to above the highest.

    Uses numpy and scikit-learn's order of summands, so sums are bit-identical to scikit-learn's.
    """
    caught = positives.cumsum(-1)
    flagged = caught + negatives.cumsum(-1)
    shape = (*caught.shape[:-1], caught.shape[-1] + 1)
    precision, recall = caught.double().new_ones(shape), caught.double().new_zeros(shape)
    # If no sample of a resample is flagged yet, precision is 1, as above the highest threshold.
    precision[..., :-1] = ((caught + (flagged == 0)).double() / flagged.clamp(min=1)).flip(-1)
    recall[..., :-1] = (caught.double() / caught[..., -1:]).flip(-1)
    return precision.cpu().numpy(), recall.cpu().numpy()


def _steps(negatives: Tensor, positives: Tensor) -> Tensor:
    """Return the area under the precision-recall curve by steps, shape (...), float64.

    Args:
        negatives: Number of negative samples at each of P ranks, shape (..., P); see `counts_by_rank`. Samples at
            the first ranks are classified as positive first.
        positives: Number of positive samples at each rank.
    """
    precision, recall = _curve(negatives, positives)
    return positives.double().new_tensor(((recall[..., :-1] - recall[..., 1:]) * precision[..., :-1]).sum(-1))


def _trapezoids(negatives: Tensor, positives: Tensor) -> Tensor:
    """Return the area under the precision-recall curve by trapezoids, shape (...), float64."""
    precision, recall = _curve(negatives, positives)
    width = recall[..., :-1] - recall[..., 1:]
    return positives.double().new_tensor((width * (precision[..., :-1] + precision[..., 1:]) / 2.0).sum(-1))


_ranked = partial(Metric, needs=MetricNeeds.OOD, unit=Unit.SHARE, high=1.0, arguments=("inside", "outside"))

RANKING = (
    _ranked(
        name="auroc",
        column="AUROC",
        definition="Probability that an OOD sample has a higher score than an ID sample, ties counting half "
        "(Hendrycks and Gimpel 2017).",
        higher_is_better=True,
        compute=auroc,
        interval=True,
    ),
    _ranked(
        name="accepted95",
        column="accepted at 95 % known",
        definition="Share of OOD accepted at the lowest threshold that accepts at least 95 % of ID.",
        higher_is_better=False,
        compute=accepted_at_tpr,
        interval=True,
    ),
    _ranked(
        name="fpr95",
        column="FPR95",
        definition="Share of ID flagged at the highest threshold that catches at least 95 % of OOD "
        "(OpenOOD, OOD positive).",
        higher_is_better=False,
        compute=fpr_at_tpr,
        interval=True,
    ),
    _ranked(
        name="aupr",
        column="AUPR",
        definition="Average precision (step sum) with OOD as the positive class, as scikit-learn's "
        "average_precision_score.",
        higher_is_better=True,
        compute=aupr_out,
        interval=True,
    ),
    _ranked(
        name="aupr_in",
        definition="Average precision (step sum) with ID as the positive class and the negated score.",
        higher_is_better=True,
        compute=aupr_in,
    ),
    _ranked(
        name="aupr_out_trapezoid",
        definition="Area under the precision-recall curve by trapezoids, OOD positive: OpenOOD's AUPR_OUT.",
        higher_is_better=True,
        compute=aupr_out_trapezoid,
    ),
    _ranked(
        name="aupr_in_trapezoid",
        definition="Area under the precision-recall curve by trapezoids, ID positive: OpenOOD's AUPR_IN.",
        higher_is_better=True,
        compute=aupr_in_trapezoid,
    ),
)
