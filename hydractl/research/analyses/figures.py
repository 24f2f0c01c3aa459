"""Figures of `eval --analyse`. Of several compared reports, the first is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from hydractl.manifest.report import Row
from hydractl.manifest.terms import ID_NAME
from hydractl.reporting.chart import Axis, Chart, Figure, Series, series_style
from hydractl.reporting.comparison import Compared
from hydractl.reporting.head_maps import value_map
from hydractl.reporting.matplotlib_figure import Panel
from hydractl.reporting.report_values import GROUPS, Quantity, format_value
from hydractl.research.analyses.tables import RowAnalyses, member_name, of_size, rows_of
from hydractl.research.corruptions.report import shift_figure
from hydractl.research.schema import BaseWithFewerHeads, Plane, Pruned

DRAWN_METRICS = ("accuracy", "nll", "ece", "auroc", "fpr95")
"""Metrics with a panel. Chosen by hand: a metric for accuracy, two for calibration and two for OOD detection.
More metrics mean more panels."""
DOT_OPACITY = 0.55
"""Opacity of dots in scatter plots. Chosen by hand: overlapping dots stay visible; twice the value would be
opaque."""


def _of_first(compared: Compared) -> str:
    return f" Of {compared.files[0]}." if len(compared.files) > 1 else ""


def _proposition(compared: Compared, row_analyses: RowAnalyses) -> Figure | None:
    """Draw measured against expected widening of the loss gap; None without results."""
    prunings_by_row = [(row, analyses.proposition) for row, analyses in row_analyses if analyses.proposition]
    members = sorted({pruned.member for _, prunings in prunings_by_row for pruned in prunings})
    return Figure.unless_empty(
        "proposition",
        "Proposition 1",
        "By how much pruning widens the loss gap of corrupted data, a mark for each corruption: above the level line it hurts more there, "
        "and near the slanted one by as much as the expansion of the loss to second order says."
        + _of_first(compared),
        [_gaps(row.name, prunings, members) for row, prunings in prunings_by_row],
        [f"member {member}" for member in members],
    )


def _gaps(row: str, prunings: Sequence[Pruned], members: Sequence[int]) -> Panel:
    expected = [0.0, *(pruned.expected for pruned in prunings)]
    low, high = min(expected), max(expected)
    by_member = [[pruned for pruned in prunings if pruned.member == member] for member in members]
    return Chart(
        title=row,
        description="; ".join(
            f"member {pruned.member}, {pruned.corruption}: {pruned.widened:.3g}, expected {pruned.expected:.3g}"
            for pruned in prunings
        ),
        x=Axis(label="as the expansion has it, nats"),
        y=Axis(label="gap widened by, nats"),
        series=[
            Series(
                points=[(pruned.expected, pruned.widened) for pruned in prunings_of_member],
                style=series_style(i),
                kind="marks",
                spans=[None] * len(prunings_of_member),
                titles=[f"member {pruned.member}, {pruned.corruption}" for pruned in prunings_of_member],
            )
            for i, prunings_of_member in enumerate(by_member)
        ],
        guides=[[(low, low), (high, high)], [(low, 0.0), (high, 0.0)]],
    ).panel()


def _pca(compared: Compared, row_analyses: RowAnalyses) -> Figure | None:
    """Draw the planes of each row's first member only; the tables have the planes of all members.

    None without results.
    """
    report = compared.reports[0]
    sets = (ID_NAME, *report.near, *report.far)
    panels = [
        _plane(f"{member_name(row, planes.member)}: {importance} important by {planes.scores}", plane, sets)
        for row, analyses in row_analyses
        for planes in analyses.pca
        for importance, plane in (("most", planes.most), ("least", planes.least))
        if planes.member == 0
    ]
    return Figure.unless_empty(
        "pca",
        "What heads say",
        "Samples in the two principal components of what the most and the least important heads say: where colours part, "
        "OOD data are told apart." + _of_first(compared),
        panels,
        sets,
    )


def _plane(title: str, plane: Plane, sets: Sequence[str]) -> Panel:
    across, up = (
        f"component {i + 1}, {100 * share:.0f} % of variance" for i, share in enumerate(plane.variance)
    )
    return Chart(
        title=title,
        description=f"{len(plane.heads)} heads; "
        + "; ".join(f"{name}: distance {x:.3g} from ID" for name, x in plane.mahalanobis.items()),
        x=Axis(label=across),
        y=Axis(label=up),
        series=[
            Series(
                points=plane.points[name],
                style=series_style(i),
                kind="dots",
                opacity=DOT_OPACITY,
                titles=[name],
            )
            for i, name in enumerate(sets)
            if name in plane.points
        ],
    ).panel()


def _quantities(values: Sequence[str], means: Sequence[str]) -> list[Quantity]:
    """Return the metrics to draw. Metrics of OOD data are means over the widest group."""
    widest = next((group for group in reversed(GROUPS) if group in means), None)
    ranked = {"auroc", "fpr95"}
    return [
        Quantity(name, widest if name in ranked else None)
        for name in DRAWN_METRICS
        if (widest if name in ranked else name in values)
    ]


def _members(compared: Compared, row_analyses: RowAnalyses) -> Figure | None:
    sizes_by_row = [
        (compared.names.index(row.name), row, analyses.members)
        for row, analyses in row_analyses
        if analyses.members
    ]
    if not sizes_by_row:
        return None
    first = sizes_by_row[0][2][0]

    def chart(quantity: Quantity) -> Panel | None:
        series: list[Series] = []
        for i, row, sizes in sizes_by_row:
            spreads = [(float(size.members), of_size(size, quantity)) for size in sizes]
            defined_spreads = [(x, spread) for x, spread in spreads if spread is not None]
            points = [(x, spread.mean) for x, spread in defined_spreads]
            series.append(Series(points=points, style=series_style(i), titles=[row.name]))
            spans = [(spread.low, spread.high) for _, spread in defined_spreads]
            titles = [f"{row.name}, {x:g} members: {format_value(quantity.metric, y)}" for x, y in points]
            series.append(
                Series(points=points, style=series_style(i), kind="marks", spans=spans, titles=titles)
            )
        most = max(len(sizes) for _, _, sizes in sizes_by_row)
        return _lines(quantity, "members", series, low=0.5, high=most + 0.5)

    return Figure.unless_empty(
        "members",
        "How many members",
        "Ensembles of some of a row's members: means over those of a size, and their least and greatest."
        + _of_first(compared),
        [chart(quantity) for quantity in _quantities([*first.values], [*first.means])],
        compared.names,
    )


def _fewer(compared: Compared, row_analyses: RowAnalyses) -> Figure | None:
    heads_by_row = [(row, analyses.heads) for row, analyses in row_analyses if analyses.heads]
    if not heads_by_row:
        return None
    first = heads_by_row[0][1][0]
    names = list(dict.fromkeys((row.name, base.scores) for row, fewer in heads_by_row for base in fewer))

    def chart(quantity: Quantity) -> Panel | None:
        series = [
            Series(
                points=_points(quantity, row, [base for base in fewer if base.scores == scores]),
                style=series_style(names.index((row.name, scores))),
                titles=[f"{row.name} by {scores}"],
            )
            for row, fewer in heads_by_row
            for scores in dict.fromkeys(base.scores for base in fewer)
        ]
        return _lines(quantity, "share of heads kept", series, low=0.0, high=1.0)

    return Figure.unless_empty(
        "fewer-heads",
        "How many heads",
        "A base with ever fewer heads, without training: the least important by each file of scores go first."
        + _of_first(compared),
        [chart(quantity) for quantity in _quantities([*first.values], [*first.means])],
        [f"{row} by {scores}" for row, scores in names],
    )


def _points(quantity: Quantity, row: Row, fewer: Sequence[BaseWithFewerHeads]) -> list[tuple[float, float]]:
    """Return (share of heads kept, value) from few heads to all heads. The unpruned row is the point at 1."""
    points = []
    for base in fewer:
        values = base.values if quantity.scope is None else base.means.get(quantity.scope, {})
        if quantity.name in values:
            points.append((base.kept / base.heads, values[quantity.name]))
    unpruned = row.values.get(quantity.name) if quantity.scope is None else None
    value = unpruned.value if unpruned else row.means.get(str(quantity.scope), {}).get(quantity.name)
    return sorted([*points, *([] if value is None else [(1.0, value)])])


def _lines(
    quantity: Quantity, across: str, series: Sequence[Series], *, low: float, high: float
) -> Panel | None:
    if not any(line.points for line in series):
        return None
    better = "higher" if quantity.metric.higher_is_better else "lower"
    return Chart(
        title=quantity.label,
        description="; ".join(
            f"{' '.join(line.titles)}: "
            + ", ".join(f"{x:g}: {format_value(quantity.metric, y)}" for x, y in line.points)
            for line in series
            if line.kind == "line"
        ),
        x=Axis(label=across, low=low, high=high),
        y=Axis(label=f"{quantity.heading}, {better} is better"),
        series=series,
    ).panel()


def _taylor(compared: Compared, row_analyses: RowAnalyses) -> Figure | None:
    panels = [
        value_map(table.tower, table.scores, most=most, place=member_name(row, table.member))
        for row, analyses in row_analyses
        for most in [max([0.0, *chain.from_iterable(table.defined_scores for table in analyses.taylor)])]
        if most > 0
        for table in analyses.taylor
    ]
    return Figure.unless_empty(
        "taylor",
        "Taylor scores",
        "How much each head matters by |weight × gradient|, layer by layer from the top: the darker the more, on one scale for all of "
        "a row's towers; heads that are gone are outlined." + _of_first(compared),
        panels,
    )


def _draw(
    figure: Callable[[Compared, RowAnalyses], Figure | None],
) -> Callable[[Compared], Figure | None]:
    return lambda compared: figure(compared, rows_of(compared.reports[0]))


FIGURES = {
    "risk": (shift_figure,),
    "heads": tuple(map(_draw, (_proposition, _pca, _members, _fewer, _taylor))),
}
