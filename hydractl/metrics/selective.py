"""Thresholds for selective prediction with a guaranteed error rate, and probability thresholds of labels.

There are two guarantees. Both hold for any distribution and any number of samples, for inputs from the same
distribution.

`errors_among_accepted` tests thresholds in a fixed sequence (Learn then Test, Angelopoulos et al. 2021,
section 3.1). The null hypothesis at each threshold: more than `risk` of the predictions below the threshold
are wrong. The p-value is the exact binomial tail, as in the Clopper-Pearson bound. The sequence starts at the
threshold that accepts the fewest samples. Each threshold is tested at level `delta`, and the first threshold
that is not rejected ends the sequence. The result is wrong only if the first true hypothesis is rejected, so
the probability of a wrong result is at most `delta`, for any number of tests.

Thresholds are at ranks that depend only on the number of samples. The scores determine which hypothesis is
the first true hypothesis, but do not change its level. Proof: cut the scores where the risk below a threshold
crosses `risk`. Between two cuts the error rate is `risk`, after the last cut it is higher, and the numbers of
samples between cuts determine the first true hypothesis. Ties in scores can only add errors.
`tests/metrics/test_selective.py` enumerates small cases.

`accepted_and_wrong` is conformal risk control (Angelopoulos et al. 2022). The loss of an input is 1 if the
input is accepted and wrong. This loss is monotone in the threshold, as required; the error rate among
accepted inputs is not.

Axes: N samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

ROOTS = 6.0
"""The first threshold accepts about `ROOTS` square roots of N samples: a third of 400 samples, a sixteenth of
10,000. Fewer would let one unlucky error end the sequence; more would start at less certain samples. Chosen
by hand; twice the value starts at twice as many samples."""
HALF, FEWEST_POSITIVES = 0.5, 10
"""Default probability threshold of a label, and the minimum number of positive samples for choosing another
threshold. F1 on fewer than ten positives is mostly noise. Chosen by hand; twice the minimum leaves the
default for more labels."""
ROUNDING = 1e-6
"""Relative distance of a threshold below the score of a sample, if no other score is between. Two
computations of a score differ by less, so later runs accept the same samples. Twice the distance tolerates
twice the difference."""


class Selection(NamedTuple):
    """A threshold on an OOD score.

    Attributes:
        below: The threshold; samples with lower scores are accepted. `None` if no sample is accepted.
        accepted: Number of accepted samples.
        errors: Number of wrong answers among accepted samples.
    """

    below: float | None
    accepted: int
    errors: int


NOTHING = Selection(None, 0, 0)


def fewest(risk: float, delta: float | None) -> int:
    """Return the minimum number of samples for a threshold without errors.

    Args:
        risk: Maximum error rate, in (0, 1).
        delta: Probability that the guarantee fails. `None` for `accepted_and_wrong`.
    """
    if delta is None:
        return math.ceil(1 / risk) - 1
    # one sample more than are accepted, since the threshold is at the score of a sample
    return math.ceil(math.log(delta) / math.log1p(-risk)) + 1


def ranks_to_test(count: int, risk: float, delta: float) -> list[int]:
    """Return the number of samples below each threshold of the sequence, without ties, in increasing order.

    Contains the numbers at which one more error is allowed, where tests have the most power, and N - 1. Empty
    if N is too small for any test to pass.

    Args:
        count: N.
        risk: Maximum error rate, in (0, 1).
        delta: Level of each test, in (0, 1).
    """
    counts = np.arange(1, count)
    allowed = scipy.stats.binom.ppf(delta, counts, risk)
    # maximum number of errors that passes the test; -1 if even 0 errors fail
    allowed -= scipy.stats.binom.cdf(allowed, counts, risk) > delta
    steps = counts[np.diff(allowed, prepend=-1) > 0].tolist()
    if not steps:
        return []
    begin = max(steps[0], ROOTS * math.sqrt(count))
    first = max(step for step in steps if step <= begin)
    return sorted({*(step for step in steps if step >= first), count - 1})


def errors_among_accepted(scores: Tensor, hits: Tensor, *, risk: float, delta: float) -> Selection:
    """Return the largest tested threshold with an error rate of at most `risk` among accepted inputs.

    An input is accepted if its score is below the threshold. The bound holds with probability at least 1 -
    `delta` over the samples, for inputs from the distribution of the samples, if samples are independent.
    Thresholds are tested from low to high until a test fails; see the module.

    Args:
        scores: Shape (N,), finite; higher is less certain.
        hits: Whether the prediction is correct, shape (N,), boolean.
        risk: Maximum error rate, in (0, 1).
        delta: Probability that the guarantee fails, in (0, 1).

    Returns:
        The threshold, or `NOTHING` if no threshold passes.

    Raises:
        ValueError: If a value is out of range, or shapes differ.
    """
    ordered, wrong = _ordered(scores, hits, risk=risk, delta=delta)
    ends = ordered[torch.tensor(ranks_to_test(len(scores), risk, delta), dtype=torch.int64)]
    accepted = torch.searchsorted(ordered, ends)  # with equal scores fewer samples than the rank are accepted
    can_tell = accepted >= fewest(risk, delta) - 1
    accepted = accepted[can_tell]
    passes = scipy.stats.binom.cdf(wrong[accepted - 1].numpy(), accepted.numpy(), risk) <= delta
    rejections = int(np.cumprod(passes).sum())
    return _below(ordered, wrong, float(ends[can_tell][rejections - 1])) if rejections else NOTHING


def accepted_and_wrong(scores: Tensor, hits: Tensor, *, risk: float) -> Selection:
    """Return the largest threshold at which at most `risk` of all inputs are accepted and wrong.

    Conformal risk control: the guarantee holds in expectation over the samples and an exchangeable input. The
    threshold is the largest with (W + 1) / (N + 1) at most `risk`, where W samples are accepted and wrong. If
    all samples are accepted, the threshold is just above the largest score.

    Args:
        scores: As in `errors_among_accepted`.
        hits: As in `errors_among_accepted`.
        risk: Maximum fraction, in (0, 1).

    Returns:
        The threshold, or `NOTHING` if no sample is accepted.

    Raises:
        ValueError: As in `errors_among_accepted`.
    """
    ordered, wrong = _ordered(scores, hits, risk=risk)
    spent = (wrong.double() + 1) / (len(scores) + 1) > risk
    if not bool(spent.any()):
        last = float(ordered[-1])
        return _below(ordered, wrong, last + 2 * ROUNDING * max(1.0, abs(last)))
    return _below(ordered, wrong, float(ordered[int(spent.int().argmax())]))


def label_thresholds(probabilities: Tensor, applies: Tensor) -> tuple[float, ...]:
    """Return the probability threshold of each label with the highest F1 on the samples, in (0, 1).

    A threshold is the middle between two probabilities; of equally good thresholds the nearest to 0.5. Labels
    with fewer than `FEWEST_POSITIVES` positive samples have 0.5.

    Args:
        probabilities: Shape (N, Q).
        applies: Whether a label applies, shape (N, Q), boolean or 0 and 1.
    """
    thresholds = []
    for probs, relevant in zip(probabilities.double().unbind(1), applies.unbind(1), strict=True):
        ordered, order = probs.sort(descending=True)
        true_positives = relevant[order].cumsum(0)
        below = torch.cat([ordered[1:], ordered.new_zeros(1)])
        f1 = 2 * true_positives / (torch.arange(1, len(ordered) + 1) + true_positives[-1])
        f1 = f1.where(ordered > below, -1)
        middles = ((ordered + below) / 2)[f1 == f1.max()]
        nearest = float(middles[(middles - HALF).abs().argmin()])
        thresholds.append(nearest if true_positives[-1] >= FEWEST_POSITIVES else HALF)
    return tuple(thresholds)


def _ordered(scores: Tensor, hits: Tensor, **shares: float) -> tuple[Tensor, Tensor]:
    """Return the sorted scores and the cumulative number of errors. Validates all arguments."""
    if scores.ndim != 1 or scores.shape != hits.shape or not bool(scores.isfinite().all()):
        raise ValueError(
            f"expected N finite scores and N hits, got {tuple(scores.shape)}, {tuple(hits.shape)}"
        )
    for name, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"{name} must be in (0, 1), got {share}")
    ordered, order = scores.sort()
    return ordered, (~hits.bool())[order].cumsum(0)


def _below(ordered: Tensor, wrong: Tensor, score: float) -> Selection:
    """Return the threshold that accepts the samples with lower scores than `score`, or `NOTHING`.

    `ordered` and `wrong` are results of `_ordered`.
    """
    accepted = int((ordered < score).sum())
    if not accepted:
        return NOTHING
    gap = (score - float(ordered[accepted - 1])) / 2
    return Selection(score - min(ROUNDING * max(1.0, abs(score)), gap), accepted, int(wrong[accepted - 1]))
