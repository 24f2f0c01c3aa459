"""Can the model tell foreign data from its own? Ranking metrics over one score a sample.

Scores grow with strangeness: the higher, the more OOD. OOD is the positive class unless a name says `in`.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from hydractl.metrics.checks import check_probs, check_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from torch import Tensor


def msp_score(probs: Tensor) -> Tensor:
    """Return the negated maximum softmax probability of every sample, in [-1, 0], higher is more OOD.

    Hendrycks and Gimpel (2017), section 2.

    Args:
        probs: Shape (B, C), rows summing to 1.

    Returns:
        Shape (B,), in the dtype of `probs`.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    check_probs(probs)
    return -probs.amax(1)


def energy_score(logits: Tensor) -> Tensor:
    """Return the energy -log Σ_c exp z_c at temperature 1, higher is more OOD (Liu et al. 2020, eq. 3).

    Args:
        logits: Shape (..., C).
    """
    return -logits.logsumexp(dim=-1)


def entropy_score(logits: Tensor) -> Tensor:
    """Return the entropy of the softmax in nats, in [0, log C], higher is more OOD.

    Args:
        logits: Shape (..., C), finite.
    """
    log_probs = logits.log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def max_logit_score(logits: Tensor) -> Tensor:
    """Return the negated largest logit, higher is more OOD (Hendrycks et al. 2022, section 3.2).

    Args:
        logits: Shape (..., C).
    """
    return -logits.amax(dim=-1)


LOGIT_SCORES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "msp": lambda logits: -logits.softmax(dim=-1).amax(dim=-1),
        "energy": energy_score,
        "entropy": entropy_score,
        "max-logit": max_logit_score,
    }
)
"""OOD scores (...) of logits (..., C) by name, as OpenOOD's postprocessors define them but for the sign."""


def auroc(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the probability that an OOD sample outscores an ID sample, in [0, 1]; a tie counts half.

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.

    Raises:
        ValueError: If either is empty, not a vector or not finite.
    """
    check_scores(id_scores, name="ID")
    check_scores(ood_scores, name="OOD")
    return float(auroc_many(id_scores[None], ood_scores[None])[0])


def auroc_many(id_scores: Tensor, ood_scores: Tensor) -> Tensor:
    """Return `auroc` of K candidates at once.

    The Mann-Whitney statistic by counting: integers until the last division, so equal rankings give equal
    bits on every device.

    Args:
        id_scores: Shape (K, N), finite.
        ood_scores: Shape (K, N'), finite.

    Returns:
        Shape (K,), float64, on the CPU, in [0, 1].

    Raises:
        ValueError: If either is empty, not a matrix or not finite, or they differ in K.
    """
    _check_many(id_scores, ood_scores)
    dtype = torch.promote_types(torch.promote_types(id_scores.dtype, ood_scores.dtype), torch.float32)
    below = torch.sort(id_scores.to(dtype), dim=1).values.contiguous()
    above = ood_scores.to(dtype).contiguous()
    strict = torch.searchsorted(below, above, right=False).sum(1)
    weak = torch.searchsorted(below, above, right=True).sum(1)
    return (strict + weak).cpu().double() / (2 * below.shape[1] * above.shape[1])


def fpr_many(id_scores: Tensor, ood_scores: Tensor, *, tpr: float = 0.95) -> Tensor:
    """Return `fpr_at_tpr` of K candidates at once.

    The threshold is the score of the OOD sample with which the share of OOD caught first reaches `tpr`; counts are integers
    until the last division.

    Args:
        id_scores: Shape (K, N), finite.
        ood_scores: Shape (K, N'), finite.
        tpr: The share of OOD to catch, in (0, 1].

    Returns:
        Shape (K,), float64, on the CPU, in [0, 1].

    Raises:
        ValueError: If either is empty, not a matrix or not finite, they differ in K, or `tpr` is out of its range.
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
    _check_many(id_scores, ood_scores)
    dtype = torch.promote_types(torch.promote_types(id_scores.dtype, ood_scores.dtype), torch.float32)
    count = ood_scores.shape[1]
    # As a division, not as tpr times the count, whose rounding could ask for one sample more.
    needed = next(n for n in range(max(1, math.floor(tpr * count) - 1), count + 1) if n / count >= tpr)
    at = torch.sort(ood_scores.to(dtype), dim=1, descending=True).values[:, needed - 1 : needed]
    flagged = (id_scores.to(dtype) >= at).sum(1)
    return flagged.cpu().double() / id_scores.shape[1]


def fpr_at_tpr(id_scores: Tensor, ood_scores: Tensor, *, tpr: float = 0.95) -> float:
    """Return the share of ID flagged at the highest threshold that catches `tpr` of OOD, in [0, 1].

    OpenOOD's FPR@95: OOD is positive, and the first point of the ROC curve with at least `tpr` counts, without
    interpolation. A sample at the threshold is flagged.

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.
        tpr: The share of OOD to catch, in (0, 1].

    Raises:
        ValueError: If the scores are empty, not vectors or not finite, or `tpr` is out of its range.
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}")
    is_ood, score = _labelled(id_scores, ood_scores)
    fpr, caught, _ = _sklearn_metrics().roc_curve(is_ood, score, drop_intermediate=False)
    return float(fpr[(caught >= tpr).argmax()])


def aupr_out(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the average precision with OOD as positive, in [0, 1]: the headline AUPR.

    The step sum of precision over recall, without interpolation, as scikit-learn's average_precision_score and
    torchmetrics' BinaryAveragePrecision have it. Samples of equal score enter together. A random score gives
    the share of OOD among all samples.

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.

    Raises:
        ValueError: If either is empty, not a vector or not finite.
    """
    is_ood, score = _labelled(id_scores, ood_scores)
    return float(_sklearn_metrics().average_precision_score(is_ood, score))


def aupr_in(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the average precision with ID as positive and the negated score, in [0, 1].

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.

    Raises:
        ValueError: If either is empty, not a vector or not finite.
    """
    is_ood, score = _labelled(id_scores, ood_scores)
    return float(_sklearn_metrics().average_precision_score(1 - is_ood, -score))


def aupr_out_trapezoid(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return OpenOOD's AUPR_OUT: trapezoids under precision over recall, OOD positive, in [0, 1].

    Linear interpolation flatters the curve (Davis and Goadrich 2006); kept for comparison with OpenOOD's
    tables.

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.

    Raises:
        ValueError: If either is empty, not a vector or not finite.
    """
    is_ood, score = _labelled(id_scores, ood_scores)
    return _trapezoid(is_ood, score)


def aupr_in_trapezoid(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return OpenOOD's AUPR_IN: trapezoids under precision over recall, ID positive, in [0, 1].

    Args:
        id_scores: Shape (N,), finite.
        ood_scores: Shape (N',), finite.

    Raises:
        ValueError: If either is empty, not a vector or not finite.
    """
    is_ood, score = _labelled(id_scores, ood_scores)
    return _trapezoid(1 - is_ood, -score)


def _check_many(id_scores: Tensor, ood_scores: Tensor) -> None:
    """Refuse scores that are not those of the same candidates."""
    check_scores(id_scores, name="ID", dims=2)
    check_scores(ood_scores, name="OOD", dims=2)
    if len(id_scores) != len(ood_scores):
        raise ValueError(f"ID scores have {len(id_scores)} candidates, but OOD scores have {len(ood_scores)}")


def _trapezoid(positive: np.ndarray, score: np.ndarray) -> float:
    """Return the trapezoidal area under the precision-recall curve of (N,) labels and scores."""
    metrics = _sklearn_metrics()
    precision, recall, _ = metrics.precision_recall_curve(positive, score, drop_intermediate=False)
    return float(metrics.auc(recall, precision))


def _labelled(id_scores: Tensor, ood_scores: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 for ID and 1 for OOD, and the scores in float64, both (N + N',)."""
    check_scores(id_scores, name="ID")
    check_scores(ood_scores, name="OOD")
    is_ood = torch.cat([torch.zeros(len(id_scores)), torch.ones(len(ood_scores))]).long()
    score = torch.cat([id_scores.detach().cpu().double(), ood_scores.detach().cpu().double()])
    return is_ood.numpy(), score.numpy()


def _sklearn_metrics() -> Any:  # noqa: ANN401 - scikit-learn ships no types
    """Return scikit-learn's metrics; they take a second to import, and scoring needs `auroc` only."""
    from sklearn import metrics  # noqa: PLC0415 - see the docstring

    return metrics
