"""Prediction sets by split conformal prediction.

A set contains the classes with a nonconformity of at most a threshold, a quantile over held-out samples. The
set of an input contains its class with at least a given probability, the coverage, for any model and any
distribution, if the input and the held-out samples are exchangeable (Vovk et al. 2005). The probability is
over both. There are three nonconformity scores:

- LAC (Sadinle et al. 2019): 1 - p(class). The sets are the smallest on average, and may be empty.
- APS (Romano et al. 2020): the sum of all probabilities above the class's probability.
- RAPS (Angelopoulos et al. 2021): APS, plus a penalty for each class with at least this probability beyond a
  rank.

APS and RAPS use no random numbers (u = 1 in Romano's definition of the sets, 0 in Angelopoulos's). So a set
contains the most probable class, and equal inputs have equal sets. Sets are larger than randomized sets if
the most probable class alone exceeds the coverage. Classes with equal probabilities are in a set together.

Axes: N samples, C classes.
"""

from __future__ import annotations

import math
from fractions import Fraction

import scipy
import torch
from torch import Tensor

from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.terms import SetMethod
from hydractl.metrics.metric_spec import check_labels, check_probs

ROUNDING = 1e-6
"""Distance of a threshold above the quantile. Two computations of the same probabilities differ by less, so
both give the same sets. Doubling the distance adds only classes within 2e-6 of the quantile."""


def nonconformity(
    probs: Tensor, method: SetMethod, *, penalty: float | None = None, rank: int | None = None
) -> Tensor:
    """Return the nonconformity of each class, shape (N, C), float64; a high value is an unlikely class.

    Args:
        probs: Shape (N, C), rows summing to 1.
        method: The nonconformity score.
        penalty: Penalty of RAPS, lambda in the paper.
        rank: Last rank without a RAPS penalty, k_reg in the paper.

    Raises:
        ValueError: If `probs` are not probabilities, or arguments of RAPS are missing.
    """
    check_probs(probs)
    return _nonconformity(probs, method, penalty=penalty, rank=rank)


def _nonconformity(probs: Tensor, method: SetMethod, *, penalty: float | None, rank: int | None) -> Tensor:
    """Return the nonconformity without validation, which would prevent export as a graph."""
    probs = probs.double()
    if method is SetMethod.LAC:
        return 1 - probs
    ordered = probs.sort(1, descending=True).values
    above = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(1)[:, :-1]], 1)
    # first index of equal probabilities; the index of NaN is past the end
    first = torch.searchsorted(-ordered, -probs)
    scores = above.gather(1, first.clamp(max=probs.shape[1] - 1))
    if method is SetMethod.APS:
        return scores
    if penalty is None or rank is None:
        raise ValueError("RAPS needs a penalty and a rank")
    # one past the last index of equal probabilities, which is the last rank from 1
    ranks = torch.searchsorted(-ordered, -probs, right=True)
    return scores + penalty * (ranks - rank).clamp(min=0).double()


def quantile_rank(count: int, coverage: float) -> int:
    """Return ceil((n + 1) coverage), the rank of the quantile among n = `count` scores.

    The result is larger than n if n is too small for the coverage.
    """
    # `repr` gives the decimal number as typed: 0.55 as a binary fraction could round up to the next rank
    return math.ceil((count + 1) * Fraction(repr(coverage)))


def fewest_samples(coverage: float) -> int:
    """Return the minimum number of samples for a coverage: the least n with ceil((n + 1) coverage) <= n."""
    level = Fraction(repr(coverage))
    return math.ceil(level / (1 - level))


def quantile(scores: Tensor, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores.

    The result is the exact quantile of split conformal prediction.

    Raises:
        ValueError: If there are fewer scores than `fewest_samples`.
    """
    rank = quantile_rank(len(scores), coverage)
    if rank > len(scores):
        raise ValueError(
            f"a coverage of {coverage} needs {fewest_samples(coverage)} samples, got {len(scores)}"
        )
    return float(scores.kthvalue(rank).values)


def known_max(scores: Tensor, share: float) -> tuple[float | None, int]:
    """Return a bound just above the ceil((n + 1) share)-th smallest of n scores, and the number of scores below.

    A new score from the same distribution is below the bound with a probability of at least `share`, on average
    over draws of the scores, and with less than share + 1 / (n + 1) without ties.

    Args:
        scores: Shape (N,), finite.
        share: In (0, 1).

    Returns:
        (None, n) if there are fewer scores than `fewest_samples`: no bound keeps the share.
    """
    rank = quantile_rank(len(scores), share)
    if rank > len(scores):
        return None, len(scores)
    last = float(scores.kthvalue(rank).values)
    gaps = [(float(score) - last) / 2 for score in scores[scores > last].sort().values[:1]]
    # two computations of a score differ by less than the distance, so later runs accept the same samples
    below = last + min([ROUNDING * max(1.0, abs(last)), *gaps])
    return below, int((scores < below).sum())


def fit_thresholds(
    scores: Tensor, labels: Tensor, method: SetMethod, coverage: float, *, classes: int | None = None
) -> tuple[float, ...]:
    """Return thresholds on the nonconformity of classes in a set: quantiles plus `ROUNDING`.

    Args:
        scores: Nonconformity of the true classes, shape (N,).
        labels: The true classes, shape (N,), integer.
        method: The nonconformity score.
        coverage: In (0, 1).
        classes: C, for one threshold per class and coverage within each class (Vovk 2012). `None` for a
            common threshold.

    Returns:
        One threshold, or C thresholds.

    Raises:
        ValueError: If there are too few samples, or too few samples of a class.
    """
    if classes is not None:
        check_labels(labels, samples=len(scores), classes=classes)
    groups = [scores] if classes is None else [scores[labels == i] for i in range(classes)]
    quantiles = [quantile(group, coverage) for group in groups]
    # the rounding error of 1 - p is relative to p; the error of a sum is relative to its largest terms
    return tuple(q + ROUNDING * (1 - q if method is SetMethod.LAC else 1) for q in quantiles)


def class_sets(probs: Tensor, rule: PredictionSets) -> Tensor:
    """Return whether each class is in the set of each sample, shape (N, C), boolean. Sets for NaN are empty.

    Args:
        probs: Shape (N, C), rows summing to 1; not validated.
        rule: Prediction sets with one threshold, or one threshold per class.
    """
    scores = _nonconformity(probs, rule.method, penalty=rule.penalty, rank=rule.rank)
    return scores <= scores.new_tensor(rule.thresholds)


def binomial_interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact confidence interval of a fraction (Clopper and Pearson 1934).

    Args:
        hits: Numerator.
        count: Denominator, at least 1.
        confidence: Confidence level, in (0, 1).
    """
    tail = (1 - confidence) / 2
    low = float(scipy.stats.beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(scipy.stats.beta.isf(tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high
