"""Selective prediction: a threshold on an OOD score below which the error rate has a guaranteed bound; and thresholds of labels.

There are two guarantees. Both hold for any distribution and any number of samples, for inputs from the same distribution.

`errors_among_accepted` tests thresholds in a fixed sequence (Learn then Test, Angelopoulos et al. 2021, section 3.1). The
null hypothesis at each threshold is that more than `risk` of the predictions below it are wrong. Its p-value is the exact
binomial tail, as in the Clopper-Pearson bound. The sequence goes from the threshold that accepts fewest samples to the
one that accepts most. Each is tested at level `delta`, and the first that is not rejected ends the sequence. A threshold
is wrong only if the first true hypothesis is rejected, so the probability of that is at most `delta`, however many are
tested.

Thresholds are at ranks that depend only on the number of samples. The scores determine which hypothesis is the first true
one, but do not change its level: cut the scores where the risk below a threshold crosses `risk`. Between two cuts the
error rate is `risk`, after the last cut it is higher, and the first true hypothesis follows from the numbers of samples
between cuts. Ties in scores can only add errors. `tests/metrics/test_selective.py` enumerates small cases.

`accepted_and_wrong` is conformal risk control (Angelopoulos et al. 2022). Its loss, whether an input is accepted and
wrong, is monotone in the threshold, as required; the error rate among accepted inputs is not.

Axes: N samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

ROOTS = 6.0
"""The first threshold accepts about so many square roots of N: few enough to be among the surest, and enough that one unlucky
answer does not end the sequence. Of 400 samples a third, of 10,000 a sixteenth."""
HALF, FEWEST_POSITIVES = 0.5, 10
ROUNDING = 1e-6
"""How far, relatively, a threshold stands below the score of a sample, if none lies between: two ways to compute it differ by
less, so that whoever answers later accepts the same samples."""


class Selection(NamedTuple):
    """A threshold: `accepted` samples have scores below it, and `errors` of these are wrong; None if no sample is accepted."""

    below: float | None
    accepted: int
    errors: int


NOTHING = Selection(None, 0, 0)


def fewest(risk: float, delta: float | None) -> int:
    """Return the minimum number of samples for a threshold without errors; `delta` is None for `accepted_and_wrong`."""
    if delta is None:
        return math.ceil(1 / risk) - 1
    return math.ceil(math.log(delta) / math.log1p(-risk)) + 1  # one more than are accepted


def ranks_to_test(count: int, risk: float, delta: float) -> list[int]:
    """Return the number of samples below each threshold of the sequence, without ties, in increasing order.

    These are the numbers at which one more error is allowed, where tests are most powerful, and N - 1.
    """
    counts = np.arange(1, count)
    allowed = binom.ppf(delta, counts, risk)
    allowed -= binom.cdf(allowed, counts, risk) > delta  # errors that pass, -1 where none do
    steps = counts[np.diff(allowed, prepend=-1) > 0].tolist()
    if not steps:
        return []
    begin = max(steps[0], ROOTS * math.sqrt(count))
    first = max(step for step in steps if step <= begin)
    return sorted({*(step for step in steps if step >= first), count - 1})


def errors_among_accepted(scores: Tensor, hits: Tensor, *, risk: float, delta: float) -> Selection:
    """Return the largest threshold that the sequence reaches: at most `risk` of the accepted inputs are wrong.

    This holds with probability at least 1 - `delta` over the samples, for inputs from the distribution of which they are
    independent draws, and for no other distribution. An input is accepted if its score is below the threshold.

    Args:
        scores: Shape (N,), finite; higher is less certain.
        hits: Shape (N,), boolean: whether the prediction is correct.
        risk: In (0, 1).
        delta: In (0, 1).

    Returns:
        `NOTHING` if no threshold passes.

    Raises:
        ValueError: If a value is out of range, or shapes differ.
    """
    ordered, wrong = _ordered(scores, hits, risk=risk, delta=delta)
    ends = ordered[torch.tensor(ranks_to_test(len(scores), risk, delta), dtype=torch.int64)]
    accepted = torch.searchsorted(ordered, ends)  # fewer than the rank where scores are equal
    can_tell = accepted >= fewest(risk, delta) - 1
    accepted = accepted[can_tell]
    passes = binom.cdf(wrong[accepted - 1].numpy(), accepted.numpy(), risk) <= delta
    passed = int(np.cumprod(passes).sum())
    return _below(ordered, wrong, float(ends[can_tell][passed - 1])) if passed else NOTHING


def accepted_and_wrong(scores: Tensor, hits: Tensor, *, risk: float) -> Selection:
    """Return the largest threshold of conformal risk control: at most `risk` of all inputs are accepted and wrong.

    This holds in expectation over the samples and an input that is exchangeable with them. It is the largest threshold
    for which (W + 1) / (N + 1) is at most `risk`, where W samples are accepted and wrong. If that accepts all samples,
    the threshold is just above their largest score.

    Args:
        scores: As in `errors_among_accepted`.
        hits: As in `errors_among_accepted`.
        risk: In (0, 1).

    Returns:
        `NOTHING` if it accepts no sample.

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
    """Return for each label the probability above which predicting it has the highest F1 on the samples, in (0, 1).

    It is the middle of two probabilities, of equally good ones the nearest to 0.5; and 0.5 for a label that applies to fewer
    than `FEWEST_POSITIVES` samples, on which F1 is mostly noise.

    Args:
        probabilities: Shape (N, Q).
        applies: Whether a label applies, (N, Q), boolean or 0 and 1.
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
    """Return the sorted scores and the cumulative number of errors, after validation."""
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
    """Return the threshold that accepts samples with lower scores than a given score."""
    accepted = int((ordered < score).sum())
    if not accepted:
        return NOTHING
    gap = (score - float(ordered[accepted - 1])) / 2
    return Selection(score - min(ROUNDING * max(1.0, abs(score)), gap), accepted, int(wrong[accepted - 1]))
