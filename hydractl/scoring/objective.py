"""Objectives of greedy search: the three of the paper, single metrics, and weighted sums of them.

The paper has accuracy, OOD separation and their mean (Hydra Ensembles, section 4.1). An objective is an arithmetic
expression: `acc-0.1*nll` is the accuracy minus a tenth of the NLL. Higher is always better: a metric for which lower is
better is subtracted, whatever its sign, so `nll` means `-nll` and `0.5*acc+0.5*nll` means `0.5*acc-0.5*nll`. Importing
this module does not load torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.registry import metric_named

TERMS: Mapping[str, Metric] = MappingProxyType(
    {name: metric_named(name) for name in ("acc", "ood", "nll", "ece", "fpr95")}
)
"""What objectives are made of, in the order in which they are recorded."""
AVERAGE = "avg"
ALIASES: Mapping[str, str] = MappingProxyType({metric.name: name for name, metric in TERMS.items()})
"""What a metric of a report is called here."""
NAMES = ("acc", "ood", AVERAGE, "auroc", "nll", "ece", "fpr95")
_TOKEN = re.compile(r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z]\w*)|(?P<sign>[-+*]))")


class Term(NamedTuple):
    """A metric's name and its factor, negative if lower is better."""

    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class Objective:
    """A sum of metrics to maximize.

    Attributes:
        terms: At least one, in the order of `TERMS`, each metric once.
    """

    terms: tuple[Term, ...]

    @property
    def text(self) -> str:
        """Text in a scores file; equal objectives have equal texts."""
        if self.terms == _AVERAGE:
            return AVERAGE
        parts = [f"{'-' if t.factor < 0 else '+'}{_times(abs(t.factor))}{t.name}" for t in self.terms]
        return "".join(parts).removeprefix("+")

    @property
    def needs_ood(self) -> bool:
        """Whether OOD data are needed."""
        return any(TERMS[t.name].needs is MetricNeeds.OOD for t in self.terms)

    @property
    def reads(self) -> frozenset[str]:
        """Values per sample that its metrics need, as in `Metric.reads`."""
        return frozenset(name for t in self.terms for name in TERMS[t.name].reads)


_AVERAGE = (Term("acc", 0.5), Term("ood", 0.5))


def parse_objective(text: str) -> Objective:
    """Parse an objective: `NAME`, or terms `[NUMBER*]NAME` joined by `+` or `-`.

    `avg` stands for `0.5*acc+0.5*ood` and cannot be part of a sum; `accuracy` and `auroc` are aliases of `acc` and `ood`.
    Spaces are ignored.

    Raises:
        UsageError: If the syntax is wrong, a metric is unknown or repeated, a number is zero or infinite, or a metric is
            subtracted for which higher is better; the message has the position, from 1.
    """
    if text.strip() == AVERAGE:
        return Objective(_AVERAGE)
    reader = _ObjectiveReader(text)
    factors: dict[str, float] = {}
    negative = reader.accept("-")
    while True:
        place = reader.position
        factor = reader.number()
        name, word = reader.name()
        if name in factors:
            raise reader.refused(place, f"`{word}` appears twice")
        if negative and TERMS[name].higher_is_better:
            raise reader.refused(place, f"`-{word}` would reward a worse {word}")
        factors[name] = factor if TERMS[name].higher_is_better else -factor
        if reader.at_end:
            break
        negative = reader.joins() == "-"
    return Objective(tuple(Term(name, factors[name]) for name in TERMS if name in factors))


class _ObjectiveReader:
    """The tokens of an objective, one after another."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(self._split())
        self._next = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        at = 0
        while self.text[at:].strip():
            token = _TOKEN.match(self.text, at)
            if token is None:
                place = at + len(self.text[at:]) - len(self.text[at:].lstrip())
                raise self.refused(place + 1, f"`{self.text[place]}` is not allowed")
            kind = str(token.lastgroup)
            yield kind, token[kind], token.start(kind) + 1
            at = token.end()

    @property
    def at_end(self) -> bool:
        """Whether everything has been read."""
        return self._next == len(self._tokens)

    @property
    def position(self) -> int:
        """Where the next token begins, from 1."""
        return len(self.text) + 1 if self.at_end else self._tokens[self._next][2]

    def _peek(self) -> tuple[str, str]:
        return ("end", "the end") if self.at_end else self._tokens[self._next][:2]

    def accept(self, sign: str) -> bool:
        """Go past a sign if it comes next."""
        matches = self._peek() == ("sign", sign)
        self._next += matches
        return matches

    def number(self) -> float:
        """Read `NUMBER*`, 1 if there is none."""
        kind, word = self._peek()
        if kind != "number":
            return 1.0
        place, value = self.position, float(word)
        if not 0 < value < math.inf:
            raise self.refused(place, f"`{word}` must be above 0 and finite")
        self._next += 1
        if not self.accept("*"):
            raise self.refused(self.position, f"expected `*` after `{word}`, found {self._next_word()}")
        return value

    def name(self) -> tuple[str, str]:
        """Read a metric's name; return it and how it is written."""
        kind, word = self._peek()
        name = ALIASES.get(word, word)
        if kind != "name":
            raise self.refused(self.position, f"expected a metric, found {self._next_word()}")
        if name == AVERAGE:
            raise self.refused(
                self.position, f"`{AVERAGE}` cannot be part of a sum", hint="write `0.5*acc+0.5*ood` in a sum"
            )
        if name not in TERMS:
            raise self.refused(self.position, f"unknown metric `{word}`", hint=did_you_mean(word, NAMES))
        self._next += 1
        return name, word

    def joins(self) -> str:
        """Read the `+` or `-` between two terms."""
        for sign in "+-":
            if self.accept(sign):
                return sign
        raise self.refused(self.position, f"expected `+` or `-`, found {self._next_word()}")

    def _next_word(self) -> str:
        kind, word = self._peek()
        return word if kind == "end" else f"`{word}`"

    def refused(self, place: int, why: str, *, hint: str | None = None) -> UsageError:
        """Return what to raise about the token that begins at `place`."""
        at = f" at character {place}" if len(self.text.strip()) > 0 else ""
        return UsageError(
            f"unknown objective `{self.text}`: {why}{at}",
            hint=hint
            or f"--objective: {', '.join(NAMES)}, or a sum such as `0.5*acc+0.5*auroc` or `acc-0.1*nll`",
        )


def _times(factor: float) -> str:
    """Return `NUMBER*` as short as it reads back, nothing for 1."""
    return "" if factor == 1 else f"{factor!r}".removesuffix(".0") + "*"
