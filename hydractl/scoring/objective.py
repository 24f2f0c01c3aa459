"""Objectives of the greedy search: the paper's three, single metrics, and weighted sums. Loads no torch.

The paper has accuracy, OOD separation and their mean (Hydra Ensembles, section 4.1). An objective is an
arithmetic expression: `acc-0.1*nll` is the accuracy minus a tenth of the NLL. Higher is always better. A
metric for which lower is better is always subtracted, so `nll` means `-nll` and `0.5*acc+0.5*nll` means
`0.5*acc-0.5*nll`.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
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
"""Metrics for objectives by name, in the order of the scores file."""
AVERAGE = "avg"
ALIASES: Mapping[str, str] = MappingProxyType({metric.name: name for name, metric in TERMS.items()})
"""Name of a term by its metric's name in reports."""
NAMES = ("acc", "ood", AVERAGE, "auroc", "nll", "ece", "fpr95")
_TOKEN = re.compile(
    r"(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z]\w*)|(?P<sign>[-+*])|(?P<other>\S)"
)


class Term(NamedTuple):
    """Term of an objective.

    Attributes:
        name: Name from `TERMS`.
        factor: Factor of the metric, negative if lower is better.
    """

    name: str
    factor: float


@dataclass(frozen=True, slots=True)
class Objective:
    """Sum of metrics to maximize.

    Attributes:
        terms: At least one term, in the order of `TERMS`, each metric once.
    """

    terms: tuple[Term, ...]

    @property
    def text(self) -> str:
        """Text for the scores file, for example `acc-0.1*nll` or `avg`. Equal objectives have equal texts."""
        if self.terms == _AVERAGE:
            return AVERAGE
        parts = [f"{'-' if t.factor < 0 else '+'}{_times(abs(t.factor))}{t.name}" for t in self.terms]
        return "".join(parts).removeprefix("+")

    @property
    def needs_ood(self) -> bool:
        """Whether OOD data is needed."""
        return any(TERMS[t.name].needs is MetricNeeds.OOD for t in self.terms)

    @property
    def outcome_names(self) -> frozenset[str]:
        """Names of the values per sample that the metrics need, see `Metric.reads`."""
        return frozenset(name for t in self.terms for name in TERMS[t.name].arguments)


_AVERAGE = (Term("acc", 0.5), Term("ood", 0.5))


def parse_objective(text: str) -> Objective:
    """Parse an objective: `NAME`, or terms `[NUMBER*]NAME` joined by `+` or `-`.

    `avg` means `0.5*acc+0.5*ood` and cannot be part of a sum. `accuracy` and `auroc` are aliases of `acc` and
    `ood`. Spaces are ignored.

    Raises:
        UsageError: If the syntax is wrong, a metric is unknown or repeated, a number is zero or infinite, or
            a metric for which higher is better is subtracted. The message has the position, from 1.
    """
    if text.strip() == AVERAGE:
        return Objective(_AVERAGE)
    tokens = deque(
        _Token(str(token.lastgroup), token[0], token.start() + 1) for token in _TOKEN.finditer(text)
    )
    tokens.append(_Token("end", "the end", len(text) + 1))
    for token in tokens:
        if token.kind == "other":
            raise _refused(text, token, f"`{token.word}` is not allowed")
    factors: dict[str, float] = {}
    sign = tokens.popleft() if tokens[0].word == "-" else None
    while True:
        first = tokens[0]
        factor, word = _term(text, tokens)
        name = ALIASES.get(word, word)
        if name in factors:
            raise _refused(text, first, f"`{word}` appears twice")
        if sign is not None and sign.word == "-" and TERMS[name].higher_is_better:
            raise _refused(text, first, f"`-{word}` would reward a worse {word}")
        factors[name] = factor if TERMS[name].higher_is_better else -factor
        sign = tokens.popleft()
        if sign.kind == "end":
            return Objective(tuple(Term(name, factors[name]) for name in TERMS if name in factors))
        if sign.word not in {"+", "-"}:
            raise _refused(text, sign, f"expected `+` or `-`, found {sign.found}")


class _Token(NamedTuple):
    """Token of an objective.

    Attributes:
        kind: `number`, `name`, `sign`, `end` or `other`.
        word: Text of the token.
        place: Position of the first character, from 1.
    """

    kind: str
    word: str
    place: int

    @property
    def found(self) -> str:
        """The token for messages."""
        return self.word if self.kind == "end" else f"`{self.word}`"


def _term(text: str, tokens: deque[_Token]) -> tuple[float, str]:
    """Parse `[NUMBER*]NAME`. Return the number, 1 by default, and the name as written."""
    factor, number = 1.0, tokens[0]
    if number.kind == "number":
        factor = float(tokens.popleft().word)
        if not 0 < factor < math.inf:
            raise _refused(text, number, f"`{number.word}` must be above 0 and finite")
        if (times := tokens.popleft()).word != "*":
            raise _refused(text, times, f"expected `*` after `{number.word}`, found {times.found}")
    token = tokens.popleft()
    if token.kind != "name":
        raise _refused(text, token, f"expected a metric, found {token.found}")
    if token.word == AVERAGE:
        raise _refused(
            text, token, f"`{AVERAGE}` cannot be part of a sum", hint="write `0.5*acc+0.5*ood` in a sum"
        )
    if ALIASES.get(token.word, token.word) not in TERMS:
        raise _refused(text, token, f"unknown metric `{token.word}`", hint=did_you_mean(token.word, NAMES))
    return factor, token.word


def _refused(text: str, token: _Token, why: str, *, hint: str | None = None) -> UsageError:
    """Return the error for a token."""
    at = f" at character {token.place}" if text.strip() else ""
    return UsageError(
        f"unknown objective `{text}`: {why}{at}",
        hint=hint
        or f"--objective: {', '.join(NAMES)}, or a sum such as `0.5*acc+0.5*auroc` or `acc-0.1*nll`",
    )


def _times(factor: float) -> str:
    """Return the shortest exact text of a factor before a name: `0.1*`, or an empty text for 1."""
    return "" if factor == 1 else f"{factor!r}".removesuffix(".0") + "*"
