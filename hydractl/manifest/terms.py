"""Terms of headers and reports: range of temperatures, limits of lists, guarantees of thresholds, kinds of prediction sets, poolings.

Importing this module loads no pydantic.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-3, 1e3
"""Range of a temperature. Outside, float32 cannot represent the differences between logits."""
MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES = 100, 20, 100


class Guarantee(StrEnum):
    """Which errors a threshold bounds, and how surely.

    `errors-among-accepted` bounds the share of the accepted inputs that are answered wrongly, with a confidence. `accepted-and-wrong`
    bounds the share of all inputs that are accepted and answered wrongly, on average over draws of the samples.
    """

    ERRORS_AMONG_ACCEPTED = "errors-among-accepted"
    ACCEPTED_AND_WRONG = "accepted-and-wrong"

    def promise(self, risk: float, delta: float | None) -> str:
        """Return it as a sentence has it; `delta` is the chance that it does not hold, None where it holds on average."""
        share = f"at most {100 * risk:g} %"
        if delta is None:
            return f"on average over draws of the held-out samples, {share} of all inputs are accepted and answered wrongly"
        return f"with {100 * (1 - delta):g} % confidence, {share} of the accepted inputs are answered wrongly"


class SetMethod(StrEnum):
    """How prediction sets rank classes: see `metrics.conformal`."""

    LAC = "lac"
    APS = "aps"
    RAPS = "raps"


ID_NAME = "id"


class Risk(NamedTuple):
    """The errors that a threshold allows.

    Attributes:
        share: The largest share of errors, in (0, 1).
        guarantee: What the share bounds.
        delta: Probability that the guarantee does not hold; None if it holds on average.
    """

    share: float
    guarantee: Guarantee
    delta: float | None


class SetRule(NamedTuple):
    """Coverage and method of prediction sets.

    Attributes:
        coverage: Probability that the set of an input contains its class, in (0, 1).
        method: How sets rank classes.
        by_class: Whether the probability holds for each class.
        penalty: Score that RAPS adds for each class beyond `rank`; None for other methods.
        rank: Classes up to this rank have no penalty; None for other methods.
    """

    coverage: float
    method: SetMethod
    by_class: bool = False
    penalty: float | None = None
    rank: int | None = None


DEFAULT_POOLING = "own"
POOLINGS = (DEFAULT_POOLING, "mean")
"""Poolings of a text classifier: that of its family, or the mean over all tokens except padding."""
