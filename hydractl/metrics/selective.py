"""Answering only where one may be sure: the threshold on an OOD score below which few enough answers are wrong.

A threshold is found by testing several and taking the loosest that passes (Learn then Test, Angelopoulos et al. 2021): at each
the null hypothesis is that more than `risk` of the answers below it are wrong, its p-value the binomial tail, which is the
Clopper-Pearson bound turned round. The ranks of the samples that thresholds stand at are fixed beforehand, by how many samples
there are, and share the chance of an error, `delta`, equally (Bonferroni). That is valid for any distribution: given the score
at a fixed rank, and which samples lie below it, these are independent draws of what lies below it.

Unlike Geifman and El-Yaniv's search (2017), the thresholds that are tested do not hang on the outcome of earlier tests.

Axes: N samples.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy.stats import binom
from torch import Tensor

STEP = 0.95
"""How much less each threshold accepts than the one before it."""
ROUNDING = 1e-6
"""How far, relatively, a threshold stands below the score of a sample, if none lies between: two ways to compute it differ by
less, so that whoever answers later accepts the same samples."""


class Selection(NamedTuple):
    """A threshold: `accepted` of the samples have scores below it, and `errors` answers to these are wrong."""

    below: float
    accepted: int
    errors: int


def fewest(risk: float, delta: float, *, tests: int = 1) -> int:
    """Return how many samples must be accepted at least, all of them right, for one of so many tests to pass."""
    return math.ceil(math.log(delta / tests) / math.log1p(-risk))


def ranks_to_test(count: int, risk: float, delta: float) -> list[int]:
    """Return how many samples lie below each threshold that is tested, if no scores are equal, most first."""
    ranks: list[int] = []
    share = 1.0
    while (rank := math.floor(share * (count - 1))) >= fewest(risk, delta, tests=len(ranks) + 1):
        ranks += [rank] if rank not in ranks else []
        share *= STEP
    return ranks


def select(scores: Tensor, hits: Tensor, *, risk: float, delta: float) -> Selection | None:
    """Return the threshold that accepts most, of those where at most `risk` of what is accepted is wrong.

    With probability at least 1 - `delta` over the draw of the samples that is so of all inputs of which they are independent
    draws; and it is of no others. An input is accepted if its score is below the threshold.

    Args:
        scores: Shape (N,), finite; the higher, the less sure.
        hits: Shape (N,), boolean: whether the answer is right.
        risk: In (0, 1).
        delta: In (0, 1).

    Returns:
        None if no threshold passes.

    Raises:
        ValueError: If a number is out of range, or shapes differ.
    """
    if scores.ndim != 1 or scores.shape != hits.shape or not bool(scores.isfinite().all()):
        raise ValueError(
            f"expected N finite scores and N hits, got {tuple(scores.shape)}, {tuple(hits.shape)}"
        )
    for name, share in (("risk", risk), ("delta", delta)):
        if not 0 < share < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {share}")
    ordered, order = scores.sort()
    wrong = (~hits.bool())[order].cumsum(0)
    ranks = ranks_to_test(len(scores), risk, delta)
    for rank in ranks:
        accepted = int((ordered < ordered[rank]).sum())  # fewer than `rank` where scores are equal
        errors = int(wrong[accepted - 1]) if accepted else 0
        if accepted and float(binom.cdf(errors, accepted, risk)) <= delta / len(ranks):
            last, score = float(ordered[accepted - 1]), float(ordered[rank])
            return Selection(
                score - min(ROUNDING * max(1.0, abs(score)), (score - last) / 2), accepted, errors
            )
    return None
