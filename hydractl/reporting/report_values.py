"""Access to the numbers of a report by quantity, and their text in tables.

Importing this module does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hydractl.messages import count
from hydractl.metrics.metric_spec import ARROWS, BY_SCORE, Metric, MetricNeeds, Unit
from hydractl.metrics.ood_scores import number_name
from hydractl.metrics.registry import METRICS
from hydractl.plugins import added

if TYPE_CHECKING:
    from hydractl.manifest.document import Value
    from hydractl.manifest.report import Report, Row

BETTER, LEVEL, WORSE = "better", "level", "worse"
_COLUMNS = {"latency_batch_ms": "Latency of a batch"}
SMALLEST: Mapping[str, float] = {
    "accuracy": 0.002,
    "nll": 0.005,
    "ece": 0.005,
    "auroc": 0.005,
    "f1_micro": 0.002,
    "span_f1": 0.002,
}
"""Differences below which two rows are level, by metric. Chosen by hand; twice the values call more rows level."""
SEEDS, SETS = "seeds", "sets"
"""Differences between several reports of one comparison: random seeds, or ID data sets."""
GROUPS = ("near", "far", "all")
"""Groups of OOD sets with a mean."""
_WRITTEN: Mapping[Unit, Callable[[float], str]] = {
    Unit.COUNT: count,
    Unit.MS: lambda value: f"{value:.2f} ms",
}


class Quantity(NamedTuple):
    """A number that a report has for every row.

    Attributes:
        name: Name of a metric, with a suffix for OOD scores after the first: `auroc@mi`.
        scope: `None` for the ID set and costs. Else an OOD set, a group of OOD sets, or a plugin's scope of
            labelled data.
    """

    name: str
    scope: str | None = None

    def __str__(self) -> str:
        """Return the name, or `name[scope]` with a scope, as in `eval --fail-if`."""
        return self.name if self.scope is None else f"{self.name}[{self.scope}]"

    @property
    def metric(self) -> Metric:
        """The metric."""
        return METRICS[self.name.partition("@")[0]]

    @property
    def under_shift(self) -> bool:
        """Whether the quantity is a metric of labelled data in a plugin's scope."""
        return self.scope is not None and self.metric.needs is MetricNeeds.LABELS

    @property
    def heading(self) -> str:
        """Name in titles and labels."""
        metric, _, score = self.name.partition("@")
        column = _COLUMNS.get(metric, self.metric.column or metric)
        return f"{column} by {score}" if score else column

    @property
    def head(self) -> str:
        """Heading in a table of one scope and one OOD score, with an arrow towards better values."""
        column = _COLUMNS.get(self.metric.name)
        return self.metric.head if column is None else f"{column}{ARROWS[self.metric.higher_is_better]}"

    def by(self, scores: Sequence[str]) -> str:
        """Return the OOD score of a ranking metric, given all scores of the report."""
        return self.name.partition("@")[2] or scores[0]

    @property
    def label(self) -> str:
        """Name with the scope, for texts without other context."""
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
    """A number with its 95 % interval.

    Attributes:
        value: The number, or the mean over several reports.
        low: Lower end of the interval.
        high: Upper end of the interval.
        deviation: Standard deviation over several reports.
    """

    value: float
    low: float | None = None
    high: float | None = None
    deviation: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval, or `None`."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        value: The number.
        note: The interval.
        word: Judgement of a difference: better, level or worse; empty for other numbers.
    """

    value: str = ""
    note: str = ""
    word: str = ""

    @property
    def text(self) -> str:
        """Number and interval in one line."""
        return f"{self.value} {self.note}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of numbers with a line per row of the report, or per other subject.

    Attributes:
        title: Title of the table.
        folded: Whether the table is collapsed, because another table has the mean over several OOD sets.
        of: Subject of the lines.
        heads: Headings of the columns.
        rows: Name and cells of each line.
        pictures: JPEG file in base64 for each line, shown on HTML pages; empty text for lines without
            picture.
    """

    title: str
    folded: bool = False
    of: str = "model"
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    pictures: tuple[str, ...] = ()


def scopes(report: Report) -> tuple[str, ...]:
    """Return the scopes of OOD metrics: the groups `all`, `near` and `far`, then the name of every set.

    Groups with fewer than two sets are left out. `near` or `far` is also left out if it has the same sets as
    `all`.
    """
    sets = {"all": (*report.near, *report.far), "near": report.near, "far": report.far}
    groups = [name for name in ("all", "near", "far") if len(sets[name]) > 1]
    if groups[1:] and sets[groups[1]] == sets["all"]:
        groups.pop()
    return (*groups, *sets["all"])


def quantities(report: Report) -> tuple[Quantity, ...]:
    """Return the quantities for tables, in order. At least one row has a value of each quantity."""
    candidates = (
        Quantity(number_name(metric.name, score, report.ood_scores), scope)
        for metric in METRICS.values()
        if metric.column
        for scope in (None, *_scopes(report, metric))
        for score in (report.ood_scores if metric.needs in BY_SCORE else report.ood_scores[:1])
    )
    return tuple(q for q in candidates if any(number_of(row, q) for row in report.rows))


def _scopes(report: Report, metric: Metric) -> tuple[str, ...]:
    """Return the scopes in which tables show a metric, besides the ID set."""
    if metric.needs in {MetricNeeds.OOD, MetricNeeds.MEMBERS}:
        return scopes(report)
    if metric.needs is not MetricNeeds.LABELS:
        return ()
    return tuple(next((row.label_scopes for row in report.rows if row.label_scopes), ()))


def number_of(row: Row, quantity: Quantity) -> Number | None:
    """Return the number of a row, or `None`."""
    scope = str(quantity.scope)
    if quantity.under_shift:
        return _mean(row.under(scope), row.intervals_under, quantity)
    if scope in GROUPS:
        return _mean(row.means.get(scope, {}), row.mean_intervals, quantity)
    return _number(row.values if quantity.scope is None else row.ood.get(scope, {}), quantity)


def difference_of(row: Row, quantity: Quantity) -> Number | None:
    """Return the number of the report's first row minus the number of this row, or `None`.

    The difference exists only if both rows were measured on the same resamples.
    """
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
    """Return a mean in the quantity's scope and the interval, or `None` if the scope lacks the quantity."""
    low, high = intervals.get(str(quantity.scope), {}).get(quantity.name, (None, None))
    return Number(value=means[quantity.name], low=low, high=high) if quantity.name in means else None


def _number(values: Mapping[str, Value], quantity: Quantity) -> Number | None:
    value = values.get(quantity.name)
    return None if value is None else Number(value=value.value, low=value.low, high=value.high)


def format_value(metric: Metric, value: float) -> str:
    """Return the text of a number in tables."""
    return _WRITTEN.get(metric.unit, "{:.3f}".format)(value)


def number_text(metric: Metric, number: Number | None) -> str:
    """Return a number with deviation and interval in one line."""
    return cell_of(metric, number).text


def cell_of(metric: Metric, number: Number | None) -> Cell:
    """Return a cell with a number, its standard deviation and its interval; an empty cell for None."""
    if number is None:
        return Cell()
    return Cell(*_parts(number, partial(format_value, metric)))


def difference_cell(metric: Metric, number: Number | None, smallest: Mapping[str, float] = SMALLEST) -> Cell:
    """Return a cell with a signed difference, the interval and the judgement."""
    if number is None:
        return Cell()
    return Cell(*_parts(number, "{:+.3f}".format), judgement(metric, number, smallest))


def judgement(metric: Metric, difference: Number, smallest: Mapping[str, float] = SMALLEST) -> str:
    """Return the judgement of a difference of the first row: better, worse or level.

    Level means that the interval contains 0, or that the difference is below the metric's smallest
    difference. Empty without an interval, or for a metric without a better direction.
    """
    if difference.interval is None or metric.higher_is_better is None:
        return ""
    low, high = difference.interval
    if low <= 0 <= high or abs(difference.value) < smallest.get(metric.name, 0.0):
        return LEVEL
    return BETTER if (low > 0) == metric.higher_is_better else WORSE


def _parts(number: Number, write: Callable[[float], str]) -> tuple[str, str]:
    """Return the texts of a number with the deviation, and of the interval."""
    deviation = "" if number.deviation is None else f" ± {write(number.deviation).removeprefix('+')}"
    return write(
        number.value
    ) + deviation, f"[{', '.join(map(write, number.interval))}]" if number.interval else ""
