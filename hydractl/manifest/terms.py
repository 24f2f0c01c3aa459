"""Terms of headers and reports: range of temperatures, limits of lists, guarantees of thresholds, kinds of prediction sets, poolings.

Importing this module loads no pydantic.
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


DIGITS = 6
"""Significant digits of a stored temperature, the precision of the search for it."""


@dataclass(frozen=True, slots=True)
class Temperature:
    """A temperature T, those of the labels of a model for several, and that of the entities of a model that answers words.

    Attributes:
        common: T > 0; divides all logits where `by_label` is empty.
        by_label: T > 0 of each of Q labels, which divide their logits instead.
        of_entities: T > 0; divides the log odds of an entity's probability, which is made of probabilities at `common`.
    """

    common: float = 1.0
    by_label: tuple[float, ...] = ()
    of_entities: float = 1.0

    @property
    def fields(self) -> dict[str, Any]:
        """The three values under the names of their fields in headers and reports."""
        return {
            "temperature": self.common,
            "label_temperatures": self.by_label,
            "entity_temperature": self.of_entities,
        }

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it."""
        return self.common, self.of_entities, *self.by_label

    def is_close(self, second: Temperature) -> bool:
        """Return whether two temperatures are equal up to the precision of a stored temperature."""
        pairs = zip_longest(self.numbers, second.numbers, fillvalue=math.nan)
        return all(math.isclose(number, other_number, rel_tol=1e-5) for number, other_number in pairs)

    def __mul__(self, second: Temperature) -> Temperature:
        """Return what logits are divided by that are divided by one temperature after the other; entities have the last one."""
        return self._combined(mul, second)

    def __truediv__(self, second: Temperature) -> Temperature:
        """Return what divides logits after another temperature has, to the same effect."""
        return replace(self._combined(truediv, second), of_entities=self.of_entities)

    def _combined(self, operator: Callable[[float, float], float], second: Temperature) -> Temperature:
        pairs = (temperature.by_label or repeat(temperature.common) for temperature in (self, second))
        by_label = tuple(map(operator, *pairs)) if self.by_label or second.by_label else ()
        return Temperature(operator(self.common, second.common), by_label, second.of_entities)

    def __str__(self) -> str:
        labels = f", of labels {min(self.by_label):g} to {max(self.by_label):g}" if self.by_label else ""
        return f"{self.common:g}{labels}" + f", of entities {self.of_entities:g}" * (self.of_entities != 1)

    def rounded(self) -> Temperature:
        """Return it as a checkpoint stores it."""
        common, of_entities, *by_label = (float(f"{number:.{DIGITS}g}") for number in self.numbers)
        return Temperature(common, tuple(by_label), of_entities)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureFields:
    """A base of reports that have the temperature of a model, with the names of `Temperature.fields`.

    Attributes:
        temperature: Common temperature.
        label_temperatures: Temperature of each label; empty if labels have no temperatures of their own.
        entity_temperature: Temperature of entities of words.
    """

    temperature: float
    label_temperatures: tuple[float, ...]
    entity_temperature: float

    @property
    def scale(self) -> Temperature:
        """The three values together."""
        return Temperature(self.temperature, self.label_temperatures, self.entity_temperature)
