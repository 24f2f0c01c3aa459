"""Terms of headers and reports: temperatures, list limits, guarantees, prediction sets, poolings.

Importing this module does not load pydantic, so the command line can read the terms without delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import repeat, zip_longest
from operator import mul, truediv
from typing import Any, NamedTuple

SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-3, 1e3
"""Range of a temperature. Outside of it, float32 cannot represent the differences between scaled logits."""
MOST_CLASSES, MOST_CONFUSIONS, MOST_EXAMPLES = 100, 20, 100
"""Maximum numbers of classes, confusions and example inputs in a report. Chosen by hand; they keep reports
and pages of models with thousands of classes small, and doubling them doubles these tables."""


class Guarantee(StrEnum):
    """Definition of the error rate bounded by a threshold.

    `errors-among-accepted` bounds the fraction of wrong answers among the accepted inputs, with a given
    confidence. `accepted-and-wrong` bounds the fraction of all inputs that are both accepted and answered
    wrongly, on average over draws of the calibration samples.
    """

    ERRORS_AMONG_ACCEPTED = "errors-among-accepted"
    ACCEPTED_AND_WRONG = "accepted-and-wrong"

    def clause(self, risk: float, delta: float | None) -> str:
        """Return the guarantee as a clause of a sentence.

        Args:
            risk: Bounded error rate, in (0, 1).
            delta: Probability that the guarantee fails, or `None` for a guarantee on average.
        """
        share = f"at most {100 * risk:g} %"
        if delta is None:
            return f"on average over draws of the held-out samples, {share} of all inputs are accepted and answered wrongly"
        return f"with {100 * (1 - delta):g} % confidence, {share} of the accepted inputs are answered wrongly"


class SetMethod(StrEnum):
    """Nonconformity score of prediction sets; see `metrics.conformal`."""

    LAC = "lac"
    APS = "aps"
    RAPS = "raps"


ID_NAME = "id"


class Risk(NamedTuple):
    """Maximum error rate of a threshold.

    Attributes:
        share: Maximum error rate, in (0, 1).
        guarantee: Definition of the bounded error rate.
        delta: Probability that the guarantee fails. `None` for a guarantee on average.
    """

    share: float
    guarantee: Guarantee
    delta: float | None


class SetRule(NamedTuple):
    """Coverage and method of prediction sets.

    Attributes:
        coverage: Probability that the set of an input contains its class, in (0, 1).
        method: Nonconformity score that ranks classes.
        by_class: Whether the coverage holds for each class separately.
        penalty: Amount that RAPS adds to the nonconformity for each rank above `rank`. `None` for other
            methods.
        rank: Last rank without a RAPS penalty. `None` for other methods.
    """

    coverage: float
    method: SetMethod
    by_class: bool = False
    penalty: float | None = None
    rank: int | None = None


DEFAULT_POOLING = "own"
POOLINGS = (DEFAULT_POOLING, "mean")
"""Poolings of a text classifier: `own` is the pooling of its family, `mean` is the mean over all tokens
except padding."""


DIGITS = 6
"""Significant digits of a stored temperature. They match the tolerance of the search for a temperature,
`metrics.temperature.LOG_TOLERANCE`, so more digits would store noise."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """The temperatures of a model.

    Attributes:
        common: T > 0. Divides all logits if `by_label` is empty.
        by_label: T > 0 for each of Q labels. Divides the logits of the labels instead of `common`.
        of_entities: T > 0. Divides the log odds of an entity's probability, computed from token probabilities
            at `common`.
    """

    common: float = 1.0
    by_label: tuple[float, ...] = ()
    of_entities: float = 1.0

    @property
    def fields(self) -> dict[str, Any]:
        """The three values by the names of their fields in headers and reports."""
        return {
            "temperature": self.common,
            "label_temperatures": self.by_label,
            "entity_temperature": self.of_entities,
        }

    @property
    def numbers(self) -> tuple[float, ...]:
        """All temperatures: common, entities, then labels."""
        return self.common, self.of_entities, *self.by_label

    def is_close(self, second: Temperature) -> bool:
        """Return whether two temperatures are equal within the precision of a stored temperature."""
        pairs = zip_longest(self.numbers, second.numbers, fillvalue=math.nan)
        return all(math.isclose(number, other_number, rel_tol=1e-5) for number, other_number in pairs)

    def __mul__(self, second: Temperature) -> Temperature:
        """Return the temperature with the effect of `self` followed by `second`.

        The entity temperature is copied from `second`, because entity probabilities are computed after all
        scaling of logits.
        """
        return self._combined(mul, second)

    def __truediv__(self, second: Temperature) -> Temperature:
        """Return the temperature that has the effect of `self` if applied after `second`.

        The entity temperature is copied from `self`.
        """
        return replace(self._combined(truediv, second), of_entities=self.of_entities)

    def _combined(self, operator: Callable[[float, float], float], second: Temperature) -> Temperature:
        pairs = (temperature.by_label or repeat(temperature.common) for temperature in (self, second))
        by_label = tuple(map(operator, *pairs)) if self.by_label or second.by_label else ()
        return Temperature(operator(self.common, second.common), by_label, second.of_entities)

    def __str__(self) -> str:
        labels = f", of labels {min(self.by_label):g} to {max(self.by_label):g}" if self.by_label else ""
        return f"{self.common:g}{labels}" + f", of entities {self.of_entities:g}" * (self.of_entities != 1)

    def rounded(self) -> Temperature:
        """Return the temperature rounded to `DIGITS` significant digits, as stored in checkpoints."""
        common, of_entities, *by_label = (float(f"{number:.{DIGITS}g}") for number in self.numbers)
        return Temperature(common, tuple(by_label), of_entities)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureFields:
    """Base of reports with the temperatures of a model, under the names of `Temperature.fields`.

    Attributes:
        temperature: Common temperature.
        label_temperatures: Temperature of each label; empty if labels share the common temperature.
        entity_temperature: Temperature of the entities of a token classifier.
    """

    temperature: float
    label_temperatures: tuple[float, ...]
    entity_temperature: float

    @property
    def scale(self) -> Temperature:
        """The three values as a `Temperature`."""
        return Temperature(self.temperature, self.label_temperatures, self.entity_temperature)
