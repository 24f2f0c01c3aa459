"""Tables and figures of metrics under corruption. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hydractl.messages import counted
from hydractl.metrics.metric_spec import Metric
from hydractl.reporting.chart import SEVERAL, Axis, Chart, Figure, Series, series_style
from hydractl.reporting.report_values import (
    Cell,
    Number,
    Quantity,
    ReportTable,
    cell_of,
    difference_cell,
    number_of,
    number_text,
)
from hydractl.reporting.sections import Section
from hydractl.research.corruptions.names import ALL_CORRUPTIONS, SHIFT

if TYPE_CHECKING:
    from hydractl.reporting.comparison import Compared

TABLED = ("accuracy", "brier", "nll", "ece")
DRAWN = ("accuracy", "nll", "ece")
ROW_OFFSET, WIDEST_OFFSET = 0.06, 0.3
"""Horizontal distance between two rows at one severity, and limit of the distance between all rows;
severities have distance 1. Chosen by hand. Doubling separates rows more, and rows of a severity still do not
reach the next severity."""

Numbers = Mapping[str, Mapping[Quantity, Number]]


def severities(quantities: Sequence[Quantity]) -> tuple[str, ...]:
    """Return the measured severities as texts, for example ("1", "3", "5"); empty without corruptions."""
    scopes = dict.fromkeys(str(q.scope) for q in quantities if q.under_shift)
    return tuple(scope.removeprefix(f"{SHIFT}:") for scope in scopes if scope.startswith(f"{SHIFT}:"))


def shift_tables(
    quantities: Sequence[Quantity], rows: Numbers, differences: Numbers
) -> Iterator[ReportTable]:
    """Yield tables of the main metrics by severity, and of the first metric by corruption.

    Numbers by severity are means over corruptions, numbers by corruption are means over severities. Rows of
    the report are columns of these tables, because there are fewer rows than severities.

    Args:
        quantities: Quantities of a report.
        rows: Numbers of each row.
        differences: For each other row, the first row's numbers minus its numbers.
    """
    under = {
        q.name: [shifted for shifted in quantities if shifted.under_shift and shifted.name == q.name]
        for q in quantities
    }
    tabled = [name for name in TABLED if under.get(name)]
    measured = {q.scope for q in under[tabled[0]]} if tabled else {}
    names = [name for name in ALL_CORRUPTIONS if name in measured]
    scopes = (
        {"clean": None}
        | {severity: f"{SHIFT}:{severity}" for severity in severities(quantities)}
        | {"all": SHIFT}
    )
    for name in tabled:
        lines = {line: Quantity(name, scope) for line, scope in scopes.items()}
        title = f"{Quantity(name).head} under {counted(len(names), 'corruption')} of the ID set"
        yield _side_by_side(f"{title}, means by severity", "severity", lines, rows, cell_of)
        leads = {row: numbers for row, numbers in differences.items() if {*lines.values()} & numbers.keys()}
        if leads:
            yield _side_by_side(
                f"{title}: {next(iter(rows))} − each other model",
                "severity",
                lines,
                leads,
                difference_cell,
            )
    if len(names) > 1:
        lines = {name: Quantity(tabled[0], name) for name in names}
        title = f"{Quantity(tabled[0]).head} by corruption, means over severities"
        yield _side_by_side(title, "corruption", lines, rows, cell_of)


def _side_by_side(
    title: str,
    of: str,
    lines: Mapping[str, Quantity],
    columns: Numbers,
    written: Callable[[Metric, Number | None], Cell],
) -> ReportTable:
    return ReportTable(
        title=title,
        of=of,
        heads=tuple(columns),
        rows=tuple(
            (line, tuple(written(q.metric, numbers.get(q)) for numbers in columns.values()))
            for line, q in lines.items()
        ),
    )


def severity_chart(compared: Compared, quantity: Quantity) -> Chart:
    """Return a chart of one metric by severity, with clean data at 0.

    A small horizontal distance between rows keeps intervals from overlapping.
    """
    across = severities(compared.quantities)
    metric = quantity.metric
    places = {quantity: 0.0} | {
        Quantity(quantity.name, f"{SHIFT}:{severity}"): float(severity) for severity in across
    }
    several = len(compared.reports) > 1
    lines = [
        Series(
            points=[
                (x + _row_offset(i, compared), number.value)
                for q, x in places.items()
                if (number := number_of(row, q)) is not None
            ],
            style=series_style(i),
            opacity=SEVERAL if several else 1.0,
            titles=[row.name],
        )
        for i, name in enumerate(compared.names)
        for report in compared.reports
        for row in report.rows
        if row.name == name
    ]
    return Chart(
        title=f"{quantity.label} under corruption",
        description="; ".join(
            f"{row}: {', '.join(number_text(metric, numbers[q]) for q in places if q in numbers)}"
            for row, numbers in compared.rows.items()
        ),
        x=Axis(label="severity"),
        y=Axis(label=f"{quantity.heading}, {'higher' if metric.higher_is_better else 'lower'} is better"),
        series=(*lines, *_spans(compared, places)),
    )


def _row_offset(row: int, compared: Compared) -> float:
    count = len(compared.names)
    return (row - (count - 1) / 2) * min(ROW_OFFSET, WIDEST_OFFSET / count)


def _spans(compared: Compared, places: Mapping[Quantity, float]) -> Iterator[Series]:
    """Yield the numbers of each row with intervals; of several reports, the means."""
    for i, (row, numbers) in enumerate(compared.rows.items()):
        spans = [
            (numbers[q], x) for q, x in places.items() if q in numbers and numbers[q].interval is not None
        ]
        if spans:
            yield Series(
                points=[(x + _row_offset(i, compared), number.value) for number, x in spans],
                style=series_style(i),
                kind="marks",
                spans=[number.interval for number, _ in spans],
                titles=[row] * len(spans),
            )


def corruption_section(compared: Compared) -> Section:
    """Return the section of a page with the tables and the figure of metrics under corruption."""
    tables = tuple(shift_tables(compared.quantities, compared.rows, compared.differences))
    return Section("corruption", "Corrupted data", tables, ("shift",))


def shift_figure(compared: Compared) -> Figure | None:
    """Draw metrics by severity, with clean data at 0; None without corruptions."""
    under = {q.name for q in compared.quantities if q.under_shift}
    charts = [severity_chart(compared, Quantity(name)) for name in DRAWN if name in under]
    bars = ". Bars are 95 % intervals" if any(s.kind == "marks" for c in charts for s in c.series) else ""
    return Figure.unless_empty(
        "shift",
        "Corruption",
        f"Quality on corrupted in-distribution data, as means over the corruptions. Severity 0 is the clean data{bars}.",
        [chart.panel() for chart in charts],
        compared.names,
    )
