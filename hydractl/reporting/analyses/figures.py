"""Figures of what `eval --analyse` found, of one report or of the first of several; and of how long rows take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from hydractl.manifest.analyses import Analyses, BaseWithFewerHeads, Plane, Pruned
from hydractl.manifest.report import Row
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.reporting.analyses.tables import of_size
from hydractl.reporting.chart import WIDTH, Axis, Chart, Figure, Series, look
from hydractl.reporting.comparison import Compared, Runtimes
from hydractl.reporting.head_maps import value_map
from hydractl.reporting.report_values import GROUPS, Quantity, written
from hydractl.reporting.svg import TEXT, Drawing, Path, Text, breadth, fitting

SHOWN = ("accuracy", "nll", "ece", "auroc", "fpr95")
FAINT = 0.55
"""The opacity of dots, which lie on one another."""
STEP, BAR, APART = 40.0, 12.0, 10.0


def analysis_figures(compared: Compared) -> Iterator[Figure]:
    """Yield every figure that there are numbers for."""
    rows = [(row, row.analyses) for row in compared.reports[0].rows if row.analyses is not None]
    for draw in (_proposition, _pca, _members, _fewer, _taylor):
        figure = draw(compared, rows)
        if figure is not None:
            yield figure
    if (runtime := _runtime(compared)) is not None:
        yield runtime


Found = Sequence[tuple[Row, Analyses]]


def _of_first(compared: Compared) -> str:
    return f" Of {compared.files[0]}." if len(compared.files) > 1 else ""


def _member(row: Row, member: int) -> str:
    return f"{row.name}, member {member}" if row.members > 1 else row.name


def _proposition(compared: Compared, found: Found) -> Figure | None:
    """What the expansion to second order expects, against what is so."""
    there = [(row, own.proposition) for row, own in found if own.proposition]
    members = sorted({each.member for _, own in there for each in own})
    return Figure.unless_empty(
        "proposition",
        "Proposition 1",
        "By how much pruning widens the loss gap of corrupted data, a mark for each corruption: above the level line it hurts more there, "
        "and near the slanted one by as much as the expansion of the loss to second order says."
        + _of_first(compared),
        [_gaps(row.name, own, members) for row, own in there],
        [f"member {member}" for member in members],
    )


def _gaps(row: str, each: Sequence[Pruned], members: Sequence[int]) -> Drawing:
    x = Axis.around(
        "as the expansion has it, nats", [0.0, *(own.expected for own in each)], written="{:.3g}".format
    )
    y = Axis.around("gap widened by, nats", [0.0, *(own.widened for own in each)], written="{:.3g}".format)
    both = [max(x.low, y.low), min(x.high, y.high)]
    by_member = [(i, [own for own in each if own.member == member]) for i, member in enumerate(members)]
    return Chart(
        title=row,
        told="; ".join(
            f"member {own.member}, {own.corruption}: {own.widened:.3g}, expected {own.expected:.3g}"
            for own in each
        ),
        x=x,
        y=y,
        series=[
            Series(
                points=[(one.expected, one.widened) for one in own],
                look=look(i),
                kind="marks",
                spans=[None] * len(own),
                titles=[f"member {one.member}, {one.corruption}" for one in own],
            )
            for i, own in by_member
        ],
        guides=[[(end, end) for end in both], [(x.low, 0.0), (x.high, 0.0)]],
    ).drawn()


def _pca(compared: Compared, found: Found) -> Figure | None:
    """Of each row's first member: tables have the others."""
    report = compared.reports[0]
    sets = (ID_NAME, *report.near, *report.far)
    panels = [
        _plane(f"{_member(row, planes.member)}: {which} important by {planes.scores}", plane, sets)
        for row, own in found
        for planes in own.pca
        for which, plane in (("most", planes.most), ("least", planes.least))
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


def _plane(title: str, plane: Plane, sets: Sequence[str]) -> Drawing:
    points = [point for own in plane.points.values() for point in own]
    across, up = (
        f"component {i + 1}, {100 * share:.0f} % of variance" for i, share in enumerate(plane.variance)
    )
    return Chart(
        title=title,
        told=f"{len(plane.heads)} heads; "
        + "; ".join(f"{name}: distance {x:.3g} from ID" for name, x in plane.mahalanobis.items()),
        x=Axis.around(across, [x for x, _ in points], written="{:.3g}".format),
        y=Axis.around(up, [y for _, y in points], written="{:.3g}".format),
        series=[
            Series(points=plane.points[name], look=look(i), kind="dots", opacity=FAINT, titles=[name])
            for i, name in enumerate(sets)
            if name in plane.points
        ],
    ).drawn()


def _quantities(values: Sequence[str], means: Sequence[str]) -> list[Quantity]:
    """Return what is drawn, of OOD data over the widest group."""
    widest = next((group for group in reversed(GROUPS) if group in means), None)
    ranked = {"auroc", "fpr95"}
    return [
        Quantity(name, widest if name in ranked else None)
        for name in SHOWN
        if (widest if name in ranked else name in values)
    ]


def _members(compared: Compared, found: Found) -> Figure | None:
    there = [(compared.names.index(row.name), row, own.members) for row, own in found if own.members]
    if not there:
        return None
    first = there[0][2][0]

    def chart(quantity: Quantity) -> Drawing | None:
        series: list[Series] = []
        for i, row, sizes in there:
            spreads = [(float(size.members), of_size(size, quantity)) for size in sizes]
            known = [(x, spread) for x, spread in spreads if spread is not None]
            points = [(x, spread.mean) for x, spread in known]
            series.append(Series(points=points, look=look(i), titles=[row.name]))
            spans = [(spread.low, spread.high) for _, spread in known]
            said = [f"{row.name}, {x:g} members: {written(quantity.metric, y)}" for x, y in points]
            series.append(Series(points=points, look=look(i), kind="marks", spans=spans, titles=said))
        most = max(len(sizes) for _, _, sizes in there)
        return _lines(quantity, "members", series, low=0.5, high=most + 0.5)

    return _charts(
        "members",
        "How many members",
        "Ensembles of some of a row's members: means over those of a size, and their least and greatest."
        + _of_first(compared),
        [chart(quantity) for quantity in _quantities([*first.values], [*first.means])],
        compared.names,
    )


def _fewer(compared: Compared, found: Found) -> Figure | None:
    there = [(row, own.heads) for row, own in found if own.heads]
    if not there:
        return None
    first = there[0][1][0]
    names = list(dict.fromkeys((row.name, each.scores) for row, own in there for each in own))

    def chart(quantity: Quantity) -> Drawing | None:
        series = [
            Series(
                points=_points(quantity, row, [each for each in own if each.scores == scores]),
                look=look(names.index((row.name, scores))),
                titles=[f"{row.name} by {scores}"],
            )
            for row, own in there
            for scores in dict.fromkeys(each.scores for each in own)
        ]
        return _lines(quantity, "share of heads kept", series, low=0.0, high=1.0)

    return _charts(
        "fewer-heads",
        "How many heads",
        "A base with ever fewer heads, without training: the least important by each file of scores go first."
        + _of_first(compared),
        [chart(quantity) for quantity in _quantities([*first.values], [*first.means])],
        [f"{row} by {scores}" for row, scores in names],
    )


def _points(quantity: Quantity, row: Row, fewer: Sequence[BaseWithFewerHeads]) -> list[tuple[float, float]]:
    """Return the share of heads and the number, from few heads to all."""
    found = []
    for each in fewer:
        values = each.values if quantity.scope is None else each.means.get(quantity.scope, {})
        if quantity.name in values:
            found.append((each.kept / each.heads, values[quantity.name]))
    whole = row.values.get(quantity.name) if quantity.scope is None else None
    value = whole.value if whole else row.means.get(str(quantity.scope), {}).get(quantity.name)
    return sorted([*found, *([] if value is None else [(1.0, value)])])


def _lines(
    quantity: Quantity, across: str, series: Sequence[Series], *, low: float, high: float
) -> Drawing | None:
    values = [y for own in series for _, y in own.points]
    values += [end for own in series for span in own.spans if span is not None for end in span]
    if not values:
        return None
    better = "higher" if quantity.metric.higher_is_better else "lower"
    return Chart(
        title=quantity.label,
        told="; ".join(
            f"{' '.join(own.titles)}: "
            + ", ".join(f"{x:g}: {written(quantity.metric, y)}" for x, y in own.points)
            for own in series
            if own.kind == "line"
        ),
        x=Axis(label=across, low=low, high=high),
        y=Axis.around(f"{quantity.heading}, {better} is better", values, written="{:.4g}".format),
        series=series,
    ).drawn()


def _taylor(compared: Compared, found: Found) -> Figure | None:
    panels = [
        value_map(table.tower, table.scores, most=most, where=_member(row, table.member))
        for row, own in found
        for most in [max([0.0, *chain.from_iterable(table.defined_scores for table in own.taylor)])]
        if most > 0
        for table in own.taylor
    ]
    return Figure.unless_empty(
        "taylor",
        "Taylor scores",
        "How much each head matters by |weight × gradient|, layer by layer from the top: the darker the more, on one scale for all of "
        "a row's towers; heads that are gone are outlined." + _of_first(compared),
        panels,
    )


def _runtime(compared: Compared) -> Figure | None:
    found = Runtimes.of(compared)
    if found is None:
        return None
    bars = [
        (i, row, found.seconds[row], f"{found.seconds[row]:.3g} s, {found.ratio(row):.2f} × the least")
        for i, row in enumerate(compared.names)
        if row in found.seconds
    ]
    return Figure.unless_empty(
        "runtime",
        "Time",
        f"Seconds for all {found.samples} ID samples in batches of {found.batch_size}: {found.batches} times the median of a batch's "
        "forward pass, without reading data. Times hang on the machine and on the batch size.",
        [_bars(bars)],
    )


def _bars(bars: Sequence[tuple[int, str, float, str]]) -> Drawing:
    """Return a bar for each row, with what is said of it above."""
    longest = max(value for _, _, value, _ in bars)
    shapes: list[Path | Text] = []
    for place, (i, row, value, said) in enumerate(bars):
        y = 14.0 + STEP * place
        room = WIDTH - breadth(said, TEXT - 1) - APART
        shapes.append(Text(at=(0, y), text=fitting(row, room)))
        right = max(1.0, WIDTH * value / longest)
        corners = [(0, y + 5), (right, y + 5), (right, y + 5 + BAR), (0, y + 5 + BAR)]
        shapes.append(Path(parts=[corners], fill=look(i).paint, title=f"{row}: {said}"))
        shapes.append(Text(at=(WIDTH, y), text=said, anchor="end", paint="soft", size=TEXT - 1))
    told = "; ".join(f"{row}: {said}" for _, row, _, said in bars)
    return Drawing(title="Time", told=told, width=WIDTH, height=STEP * len(bars), shapes=shapes)


def _charts(
    name: str, title: str, told: str, charts: Sequence[Drawing | None], names: Sequence[str]
) -> Figure | None:
    return Figure.unless_empty(name, title, told, [chart for chart in charts if chart is not None], names)
