"""The numbers of a report by what they are of, and how a person reads them. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hydractl.messages import count
from hydractl.metrics.metric_spec import ARROWS, Metric, MetricNeeds, Unit
from hydractl.metrics.ood_scores import number_name
from hydractl.metrics.registry import METRICS
from hydractl.plugins import added

if TYPE_CHECKING:
    from hydractl.manifest.document import Value
    from hydractl.manifest.report import Report, Row

BETTER, LEVEL, WORSE = "better", "level", "worse"
_COLUMNS = {"latency_batch_ms": "Latency of a batch"}
SEEDS, SETS = "seeds", "sets"
"""Difference between several reports."""
GROUPS = ("near", "far", "all")
"""What has a mean over data sets."""
_WRITTEN: Mapping[Unit, Callable[[float], str]] = {
    Unit.COUNT: count,
    Unit.MS: lambda value: f"{value:.2f} ms",
}


class Quantity(NamedTuple):
    """Something that is measured of every row.

    Attributes:
        name: A metric, perhaps by another OOD score than the first: `auroc@mi`.
        scope: None for the ID set and costs, else an OOD set or a group of them; of labelled data a scope of a plugin.
    """

    name: str
    scope: str | None = None

    def __str__(self) -> str:
        """Return it as a condition of `eval --fail-if` has it."""
        return self.name if self.scope is None else f"{self.name}[{self.scope}]"

    @property
    def metric(self) -> Metric:
        """What it is of."""
        return METRICS[self.name.partition("@")[0]]

    @property
    def under_shift(self) -> bool:
        """Whether it is of the ID set in a scope of a plugin."""
        return self.scope is not None and self.metric.needs is MetricNeeds.LABELS

    @property
    def heading(self) -> str:
        """What titles and labels call it."""
        metric, _, score = self.name.partition("@")
        column = _COLUMNS.get(metric, self.metric.column or metric)
        return f"{column} by {score}" if score else column

    @property
    def head(self) -> str:
        """What stands above it in a table of its scope and its OOD score."""
        column = _COLUMNS.get(self.metric.name)
        return self.metric.head if column is None else f"{column}{ARROWS[self.metric.higher_is_better]}"

    def by(self, scores: Sequence[str]) -> str:
        """Return the OOD score that ranks samples, where the first of these has no name in a report."""
        return self.name.partition("@")[2] or scores[0]

    @property
    def label(self) -> str:
        """What it is called where anything may stand beside it."""
        heading = {"Acc": "accuracy"}.get(self.heading, self.heading)
        if self.scope is None:
            return heading
        if self.under_shift:
            return f"{heading} under {next((s.title(self.scope) for s in added('scopes')), self.scope)}"
        return (
            f"{heading} (mean over {self.scope} sets)"
            if self.scope in GROUPS
            else f"{heading} on {self.scope}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number with its 95 % interval where it has one; of several reports the mean, and the deviation among them."""

    value: float
    low: float | None = None
    high: float | None = None
    deviation: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, if there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Cell(NamedTuple):
    """A number, its interval, and of a difference whether it is to the better."""

    value: str = ""
    note: str = ""
    word: str = ""

    @property
    def text(self) -> str:
        """Number and interval in one line."""
        return f"{self.value} {self.note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Numbers, a line for each row of the report or `of` something else.

    Attributes:
        title: What they are.
        folded: Whether they are of one of several OOD sets, whose means stand elsewhere.
        of: What its lines are.
        heads: What stands above its columns.
        rows: The name of each line, and its cells.
        pictures: What pages of HTML show beside the name of each line, JPEG files in base64; empty where there is none.
    """

    title: str
    folded: bool = False
    of: str = "model"
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    pictures: tuple[str, ...] = ()


def scopes(report: Report) -> tuple[str, ...]:
    """Return where OOD metrics are shown: means over groups of several sets, the widest first, and every set."""
    sets = {"all": (*report.near, *report.far), "near": report.near, "far": report.far}
    groups = [name for name in ("all", "near", "far") if len(sets[name]) > 1]
    if groups[1:] and sets[groups[1]] == sets["all"]:
        groups.pop()
    return (*groups, *sets["all"])


def quantities(report: Report) -> tuple[Quantity, ...]:
    """Return what tables show of a report, in their order, as far as some row has it."""
    candidates = (
        Quantity(number_name(metric.name, score, report.ood_scores), scope)
        for metric in METRICS.values()
        if metric.column
        for scope in (None, *_scopes(report, metric))
        for score in (report.ood_scores if metric.needs is MetricNeeds.OOD else report.ood_scores[:1])
    )
    return tuple(q for q in candidates if any(number_of(row, q) for row in report.rows))


def _scopes(report: Report, metric: Metric) -> tuple[str, ...]:
    """Return where a metric is measured beside the clean ID set, as far as tables show it."""
    if metric.needs in {MetricNeeds.OOD, MetricNeeds.MEMBERS}:
        return scopes(report)
    if metric.needs is not MetricNeeds.LABELS:
        return ()
    return tuple(next((row.label_scopes for row in report.rows if row.label_scopes), ()))


def number_of(row: Row, quantity: Quantity) -> Number | None:
    """Return what a row says of it."""
    scope = str(quantity.scope)
    if quantity.under_shift:
        return _mean(row.under(scope), row.intervals_under, quantity)
    if scope in GROUPS:
        return _mean(row.means.get(scope, {}), row.mean_intervals, quantity)
    return _number(row.values if quantity.scope is None else row.ood.get(scope, {}), quantity)


def difference_of(row: Row, quantity: Quantity) -> Number | None:
    """Return what the first row of a report has more than this one, where both were measured on the same resamples."""
    difference, scope = row.difference, quantity.scope
    if difference is None:
        return None
    if quantity.under_shift:
        return _number(difference.under(str(scope)), quantity)
    sets = difference.means if scope in GROUPS else difference.ood
    return _number(difference.values if scope is None else sets.get(scope, {}), quantity)


def _mean(
    means: Mapping[str, float], intervals: Mapping[str, Mapping[str, tuple[float, float]]], quantity: Quantity
) -> Number | None:
    """Return a mean of those of a scope, with its interval if intervals by scope have it."""
    low, high = intervals.get(str(quantity.scope), {}).get(quantity.name, (None, None))
    return Number(value=means[quantity.name], low=low, high=high) if quantity.name in means else None


def _number(values: Mapping[str, Value], quantity: Quantity) -> Number | None:
    value = values.get(quantity.name)
    return None if value is None else Number(value=value.value, low=value.low, high=value.high)


def written(metric: Metric, value: float) -> str:
    """Return a number as tables have it."""
    return _WRITTEN.get(metric.unit, "{:.3f}".format)(value)


def number_text(metric: Metric, number: Number | None) -> str:
    """Return a number with its deviation and its interval."""
    return cell_of(metric, number).text


def cell_of(metric: Metric, number: Number | None) -> Cell:
    """Return a number with its deviation, and its interval beside it."""
    if number is None:
        return Cell()
    return Cell(*_parts(number, partial(written, metric)))


def difference_cell(metric: Metric, number: Number | None) -> Cell:
    """Return a difference and its interval, each with its sign, and whether it is to the better."""
    if number is None:
        return Cell()
    return Cell(*_parts(number, "{:+.3f}".format), judgement(metric, number))


def judgement(metric: Metric, difference: Number) -> str:
    """Return whether the first row is better by a difference: `level` where its interval holds 0, nothing where it has none."""
    if difference.interval is None or metric.higher_is_better is None:
        return ""
    low, high = difference.interval
    if low <= 0 <= high:
        return LEVEL
    return BETTER if (low > 0) == metric.higher_is_better else WORSE


def _parts(number: Number, write: Callable[[float], str]) -> tuple[str, str]:
    """Return a number with its deviation, and its interval."""
    deviation = "" if number.deviation is None else f" ± {write(number.deviation).removeprefix('+')}"
    return write(
        number.value
    ) + deviation, f"[{', '.join(map(write, number.interval))}]" if number.interval else ""
