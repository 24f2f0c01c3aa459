"""Answering only where one may be sure: the threshold on an OOD score below which few enough answers are wrong.

There are two guarantees. Both hold for any distribution and any number of samples, of inputs that are drawn as these were.

`errors_among_accepted` tests thresholds in a fixed sequence (Learn then Test, Angelopoulos et al. 2021, section 3.1). At each the null
hypothesis is that more than `risk` of the answers below it are wrong, and its p-value the exact binomial tail, which is the
Clopper-Pearson bound turned round. The sequence leads from the threshold that accepts fewest to the one that accepts most, each is
tested at the whole of `delta`, and the first that is not rejected ends it. A wrong threshold is taken only if the first true
hypothesis of the sequence is rejected, so that the chance of any error is at most `delta`, however many are tested.

Thresholds stand at ranks that are fixed beforehand, by how many samples there are. Which of them is the first true hypothesis
hangs on the scores, and leaves its level as it is: cut the scores wherever the risk below a threshold crosses `risk`. Of the samples
between two cuts a share of `risk` is wrong, after the last one more, and which hypothesis is the first true one follows from how
many samples lie between which cuts. Where scores are equal, it follows from how these part there too, and only such that errors are
more. `tests/metrics/test_selective.py` enumerates small cases.

`accepted_and_wrong` is conformal risk control (Angelopoulos et al. 2022). Its loss, whether an input is accepted and answered wrongly, falls
with the threshold, as it must; the share of errors among the accepted does not.

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
ROUNDING = 1e-6
"""How far, relatively, a threshold stands below the score of a sample, if none lies between: two ways to compute it differ by
less, so that whoever answers later accepts the same samples."""


class Selection(NamedTuple):
    """A threshold: `accepted` of the samples have scores below it, and `errors` answers to these are wrong; None where none is accepted."""

    below: float | None
    accepted: int
    errors: int


NOTHING = Selection(None, 0, 0)


def fewest(risk: float, delta: float | None) -> int:
    """Return how many samples a threshold needs, if every answer is right; `delta` is None for `accepted_and_wrong`."""
    if delta is None:
        return math.ceil(1 / risk) - 1
    return math.ceil(math.log(delta) / math.log1p(-risk)) + 1  # one more than are accepted


def ranks_to_test(count: int, risk: float, delta: float) -> list[int]:
    """Return how many samples lie below each threshold of the sequence, if no scores are equal, fewest first.

    They are the numbers at which one error more is allowed, where tests lose least; and all samples but one.
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
    """Return the loosest threshold that the sequence reaches: at most `risk` of what it accepts is wrong.

    With probability at least 1 - `delta` over the draw of the samples that is so of all inputs of which they are independent
    draws; and it is of no others. An input is accepted if its score is below the threshold.

    Args:
        scores: Shape (N,), finite; the higher, the less sure.
        hits: Shape (N,), boolean: whether the answer is right.
        risk: In (0, 1).
        delta: In (0, 1).

    Returns:
        `NOTHING` if no threshold passes.

    Raises:
        ValueError: If a number is out of range, or shapes differ.
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
    """Return the loosest threshold that conformal risk control allows: at most `risk` of all inputs are accepted and wrong.

    That is so in expectation, over the draw of the samples and of an input that is exchangeable with them. It is the loosest at which
    (W + 1) / (N + 1) is at most `risk`, W of the samples being accepted and wrong: their share as the paper corrects it.
    Where that accepts all samples it stands right above them, and inputs that are stranger than all are not accepted.

    Args:
        scores: As above.
        hits: As above.
        risk: In (0, 1).

    Returns:
        `NOTHING` if it accepts no sample.

    Raises:
        ValueError: As above.
    """
    ordered, wrong = _ordered(scores, hits, risk=risk)
    spent = (wrong.double() + 1) / (len(scores) + 1) > risk
    if not bool(spent.any()):
        last = float(ordered[-1])
        return _below(ordered, wrong, last + 2 * ROUNDING * max(1.0, abs(last)))
    return _below(ordered, wrong, float(ordered[int(spent.int().argmax())]))


def _ordered(scores: Tensor, hits: Tensor, **shares: float) -> tuple[Tensor, Tensor]:
    """Return the scores in order, and how many answers are wrong up to each; refuse what is out of range."""
    if scores.ndim != 1 or scores.shape != hits.shape or not bool(scores.isfinite().all()):
        raise ValueError(
            f"expected N finite scores and N hits, got {tuple(scores.shape)}, {tuple(hits.shape)}"
        )
    for name, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {share}")
    ordered, order = scores.sort()
    return ordered, (~hits.bool())[order].cumsum(0)


def _below(ordered: Tensor, wrong: Tensor, score: float) -> Selection:
    """Return the threshold that accepts what scores less than a score."""
    accepted = int((ordered < score).sum())
    if not accepted:
        return NOTHING
    gap = (score - float(ordered[accepted - 1])) / 2
    return Selection(score - min(ROUNDING * max(1.0, abs(score)), gap), accepted, int(wrong[accepted - 1]))
