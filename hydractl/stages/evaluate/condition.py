"""`--fail-if`: a bound that a measured number must not break."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from hydractl.errors import UsageError
from hydractl.metrics.metric import Needs
from hydractl.metrics.table import METRICS, metric_named
from hydractl.progress import did_you_mean

if TYPE_CHECKING:
    from hydractl.manifest.report import Check, Row

OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
GRAMMAR = re.compile(
    r"\s*(?P<metric>\w+)\s*(?:\[\s*(?P<scope>[^\[\]]*?)\s*\])?\s*(?P<operator>>=|<=|>|<)\s*(?P<bound>\S+)\s*"
)
EXAMPLES = "for example `--fail-if 'ece>0.02'` or `--fail-if 'auroc[near]<0.9'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """When `eval` fails: a metric of the first row, an operator and a bound.

    Attributes:
        metric: A name of `METRICS`.
        scope: None for the ID set and costs; else `near`, `far`, `all` or an OOD set's name.
        comparison: One of `OPERATORS`.
        bound: In the metric's own unit: shares are in [0, 1].
    """

    metric: str
    scope: str | None
    comparison: str
    bound: float

    def __post_init__(self) -> None:
        metric = metric_named(self.metric)
        if not metric.low <= self.bound <= metric.high or not math.isfinite(self.bound):
            raise UsageError(
                f"`{self}`: {self.metric} lies between {metric.low:g} and {metric.high:g}, so this can never change",
                hint="95 % is written 0.95" if 1 < self.bound <= 100 else None,
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `METRIC[SCOPE] OPERATOR NUMBER`.

        Raises:
            UsageError: If `text` does not follow the grammar, or the metric is unknown.
        """
        match = GRAMMAR.fullmatch(text)
        if match is None:
            raise UsageError(
                f"`--fail-if {text}`: expected METRIC, an operator of {' '.join(OPERATORS)}, and a number",
                hint=EXAMPLES,
            )
        try:
            bound = float(match["bound"])
        except ValueError as error:
            raise UsageError(
                f"`--fail-if {text}`: `{match['bound']}` is not a number", hint=EXAMPLES
            ) from error
        return cls(metric=match["metric"], scope=match["scope"], comparison=match["operator"], bound=bound)

    def __str__(self) -> str:
        scope = "" if self.scope is None else f"[{self.scope}]"
        return f"{self.metric}{scope}{self.comparison}{self.bound:.12g}"

    def check_measured(self, metrics: Sequence[str], scopes: Sequence[str]) -> None:
        """Refuse a condition on what will not be measured, before anything is.

        Args:
            metrics: What will be measured.
            scopes: The OOD sets and the groups of them that have a mean.

        Raises:
            UsageError: With what to write instead.
        """
        needs = METRICS[self.metric].needs
        if self.metric not in metrics:
            why = (
                "is not among the chosen metrics"
                if needs not in (Needs.OOD, Needs.TIME)
                else "needs an OOD data set"
                if needs is Needs.OOD and not scopes
                else "is not measured"
            )
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} {why}", hint="see `--metrics`, `--near`, `--far`"
            )
        if self.scope is None and needs is Needs.OOD:
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} on which OOD data?",
                hint=f"write `{self.metric}[{scopes[-1]}]`; there are {', '.join(scopes)}",
            )
        if self.scope is not None and needs not in (Needs.OOD, Needs.MEMBERS):
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} is not measured on OOD data",
                hint=f"write `{self.metric}{self.comparison}{self.bound:.12g}`",
            )
        if self.scope is not None and self.scope not in scopes:
            raise UsageError(
                f"`--fail-if {self}`: there is no OOD data set or group `{self.scope}`",
                hint=did_you_mean(self.scope, scopes)
                or (f"there are {', '.join(scopes)}" if scopes else "add `--near NAME=DATA`"),
            )

    def check(self, row: Row) -> Check:
        """Return what came of the condition on a row that was measured."""
        from hydractl.manifest.report import Check  # noqa: PLC0415 - `--help` loads no pydantic

        found = self._find(row)
        return Check(condition=str(self), failed=OPERATORS[self.comparison](found, self.bound), found=found)

    def _find(self, row: Row) -> float:
        if self.scope is None:
            return row.values[self.metric].value
        means: Mapping[str, float] | None = row.means.get(self.scope)
        return row.ood[self.scope][self.metric].value if means is None else means[self.metric]
