"""Numbers under corruption as tables and as curves over the severity. Importing it loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hydractl.data.corruptions.names import KNOWN
from hydractl.manifest.scopes import SHIFT
from hydractl.metrics.metric import Metric
from hydractl.reporting.chart import SEVERAL, Axis, Chart, Series, look
from hydractl.reporting.numbers import Cell, Number, Quantity, Table, cell_of, number_of, signed, told
from hydractl.wording import counted

if TYPE_CHECKING:
    from hydractl.reporting.compared import Compared

TABLED = ("accuracy", "brier", "nll", "ece")
APART, TOGETHER = 0.06, 0.3
"""How far apart two rows at one severity stand, and all of them."""

Numbers = Mapping[str, Mapping[Quantity, Number]]


def severities(quantities: Sequence[Quantity]) -> tuple[str, ...]:
    """Return at which severities some of these were measured."""
    scopes = dict.fromkeys(str(q.scope) for q in quantities if q.under_shift)
    return tuple(scope.removeprefix(f"{SHIFT}:") for scope in scopes if scope.startswith(f"{SHIFT}:"))


def shift_tables(quantities: Sequence[Quantity], rows: Numbers, differences: Numbers) -> Iterator[Table]:
    """Yield each of the first metrics by severity, means over corruptions, and the first of them by corruption.

    Rows of the report stand side by side, as there are fewer of them than of severities.

    Args:
        quantities: Those of a report.
        rows: The numbers of each row.
        differences: For each other row how much more the first one has.
    """
    under = {
        q.name: [own for own in quantities if own.under_shift and own.name == q.name] for q in quantities
    }
    found = [name for name in TABLED if under.get(name)]
    measured = {q.scope for q in under[found[0]]} if found else {}
    names = [name for name in KNOWN if name in measured]
    scopes = {"clean": None} | {each: f"{SHIFT}:{each}" for each in severities(quantities)} | {"all": SHIFT}
    for name in found:
        lines = {line: Quantity(name, scope) for line, scope in scopes.items()}
        title = f"{Quantity(name).heading} under {counted(len(names), 'corruption')} of the ID set"
        yield _side_by_side(f"{title}, means by severity", "severity", lines, rows, cell_of)
        wanted = {*lines.values()}
        less = {row: own for row, own in differences.items() if wanted & own.keys()}
        if less:
            yield _side_by_side(
                f"{title}: {next(iter(rows))} less each other row", "severity", lines, less, _less
            )
    if len(names) > 1:
        lines = {name: Quantity(found[0], name) for name in names}
        title = f"{Quantity(found[0]).heading} by corruption, means over severities"
        yield _side_by_side(title, "corruption", lines, rows, cell_of)


def _side_by_side(
    title: str,
    of: str,
    lines: Mapping[str, Quantity],
    columns: Numbers,
    written: Callable[[Metric, Number | None], Cell],
) -> Table:
    return Table(
        title=title,
        folded=False,
        of=of,
        heads=tuple(columns),
        rows=tuple(
            (line, tuple(written(q.metric, own.get(q)) for own in columns.values()))
            for line, q in lines.items()
        ),
    )


def _less(_: Metric, number: Number | None) -> Cell:
    return signed(number)


def severity_chart(compared: Compared, quantity: Quantity) -> Chart:
    """Return one number by the severity of corruptions, clean data at 0: rows stand a little apart, so that bars can be told."""
    across = severities(compared.quantities)
    metric = quantity.metric
    places = {quantity: 0.0} | {Quantity(quantity.name, f"{SHIFT}:{each}"): float(each) for each in across}
    several = len(compared.reports) > 1
    lines = [
        Series(
            points=[
                (x + _aside(i, compared), found.value)
                for q, x in places.items()
                if (found := number_of(row, q)) is not None
            ],
            look=look(i),
            opacity=SEVERAL if several else 1.0,
            titles=[row.name],
        )
        for i, own in enumerate(compared.names)
        for report in compared.reports
        for row in report.rows
        if row.name == own
    ]
    marks = [*_spans(compared, places)]
    ends = [y for own in lines for _, y in own.points]
    ends += [end for own in marks for span in own.spans for end in span or ()]
    return Chart(
        title=f"{quantity.label} under corruption",
        told="; ".join(
            f"{row}: {', '.join(told(metric, own[q]) for q in places if q in own)}"
            for row, own in compared.rows.items()
        ),
        x=Axis(label="severity", high=5.0),
        y=Axis.around(
            f"{quantity.heading}, {'higher' if metric.higher_is_better else 'lower'} is better",
            ends,
            written="{:.4g}".format,
        ),
        series=(*lines, *marks),
    )


def _aside(row: int, compared: Compared) -> float:
    count = len(compared.names)
    return (row - (count - 1) / 2) * min(APART, TOGETHER / count)


def _spans(compared: Compared, places: Mapping[Quantity, float]) -> Iterator[Series]:
    """Yield for each row its numbers with their intervals, beside those of others; of several reports the means."""
    for i, (row, own) in enumerate(compared.rows.items()):
        found = [(own[q], x) for q, x in places.items() if q in own and own[q].interval is not None]
        if found:
            yield Series(
                points=[(x + _aside(i, compared), number.value) for number, x in found],
                look=look(i),
                kind="marks",
                spans=[number.interval for number, _ in found],
                titles=[row] * len(found),
            )
