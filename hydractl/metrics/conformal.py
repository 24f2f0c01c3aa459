"""Prediction sets by split conformal prediction: classes whose nonconformity does not exceed a quantile of held-out samples.

The set of an input contains its class with at least a given probability, the coverage, for any model and any distribution, if the
input and the held-out samples are exchangeable (Vovk et al. 2005). The probability is over both. There are three scores:

- LAC (Sadinle et al. 2019): 1 - p(class). Its sets are the smallest on average, and may be empty.
- APS (Romano et al. 2020): the sum of all probabilities above that of the class.
- RAPS (Angelopoulos et al. 2021): APS, plus a penalty for each class of at least that probability beyond a rank.

APS and RAPS draw no random numbers (u = 1 in Romano's definition of the sets, 0 in Angelopoulos's): a set contains the most probable
class, and the same input has the same set. Sets are larger than randomized ones if the most probable class alone exceeds the coverage.
Classes with equal probabilities are in a set together.

Axes: N samples, C classes.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from scipy.stats import beta
from torch import Tensor

from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.terms import SetMethod
from hydractl.metrics.metric_spec import check_labels, check_probs

ROUNDING = 1e-6
"""How far a threshold lies above the quantile, so that samples with the same probabilities but for rounding are in the same sets."""


def nonconformity(
    probs: Tensor, method: SetMethod, *, penalty: float | None = None, rank: int | None = None
) -> Tensor:
    """Return the nonconformity of each class, float64 (N, C); higher is less likely to be the class.

    Args:
        probs: Shape (N, C), rows summing to 1.
        method: The score.
        penalty: Of RAPS, lambda in the paper.
        rank: Of RAPS, k_reg in the paper: classes up to this rank have no penalty.

    Raises:
        ValueError: If `probs` are not probabilities, or the arguments of RAPS are missing.
    """
    check_probs(probs)
    return _nonconformity(probs, method, penalty=penalty, rank=rank)


def _nonconformity(probs: Tensor, method: SetMethod, *, penalty: float | None, rank: int | None) -> Tensor:
    """Return the same of any numbers, without looking at them, so that graphs can be made of it."""
    probs = probs.double()
    if method is SetMethod.LAC:
        return 1 - probs
    ordered = probs.sort(1, descending=True).values
    above = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(1)[:, :-1]], 1)
    first = torch.searchsorted(-ordered, -probs)  # of those that are equal; not-a-numbers are behind all
    scores = above.gather(1, first.clamp(max=probs.shape[1] - 1))
    if method is SetMethod.APS:
        return scores
    if penalty is None or rank is None:
        raise ValueError("RAPS needs a penalty and a rank")
    ranks = torch.searchsorted(-ordered, -probs, right=True)  # the last of those
    return scores + penalty * (ranks - rank).clamp(min=0).double()


def quantile_rank(count: int, coverage: float) -> int:
    """Return ceil((n + 1) coverage), which of n ordered scores is the quantile; it exceeds n if these are too few."""
    return math.ceil((count + 1) * Fraction(repr(coverage)))  # 0.55 as it is typed, not as it is in binary


def fewest_samples(coverage: float) -> int:
    """Return the minimum number of samples for a coverage: the least n with ceil((n + 1) coverage) <= n."""
    level = Fraction(repr(coverage))
    return math.ceil(level / (1 - level))


def quantile(scores: Tensor, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores, the exact quantile of split conformal prediction.

    Raises:
        ValueError: If there are fewer scores than `fewest_samples`.
    """
    rank = quantile_rank(len(scores), coverage)
    if rank > len(scores):
        raise ValueError(
            f"a coverage of {coverage} needs {fewest_samples(coverage)} samples, got {len(scores)}"
        )
    return float(scores.kthvalue(rank).values)


def fit_thresholds(
    scores: Tensor, labels: Tensor, method: SetMethod, coverage: float, *, classes: int | None = None
) -> tuple[float, ...]:
    """Return the thresholds that the nonconformity of classes in a set must not exceed: quantiles plus `ROUNDING`.

    Args:
        scores: Nonconformity of the true classes, (N,).
        labels: The true classes, (N,), integer.
        method: The score.
        coverage: In (0, 1).
        classes: C, for a threshold for each class, which covers the samples of each (Vovk 2012); None for a common one.

    Returns:
        One threshold, or C.

    Raises:
        ValueError: If there are too few samples, or too few of a class.
    """
    if classes is not None:
        check_labels(labels, samples=len(scores), classes=classes)
    groups = [scores] if classes is None else [scores[labels == i] for i in range(classes)]
    quantiles = [quantile(group, coverage) for group in groups]
    # what rounding can change of 1 - p is relative to p, and a sum is rounded as its largest terms
    return tuple(q + ROUNDING * (1 - q if method is SetMethod.LAC else 1) for q in quantiles)


def class_sets(probs: Tensor, rule: PredictionSets) -> Tensor:
    """Return which classes are in the set of each sample, boolean (N, C); none of those of not-a-numbers.

    Args:
        probs: Shape (N, C), rows summing to 1, which is not checked.
        rule: With a threshold for all classes or for each.
    """
    scores = _nonconformity(probs, rule.method, penalty=rule.penalty, rank=rule.rank)
    return scores <= scores.new_tensor(rule.thresholds)


def binomial_interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a share, `hits` of `count` >= 1 (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.isf(tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high
