"""Figures of reports, drawn only from the reports' numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from hydractl.manifest.report import Bins, Curves, Line
from hydractl.messages import count, counted, listed
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.plugins import functions_after
from hydractl.reporting.chart import SEVERAL, WIDTH, Axis, Chart, Figure, Series, series_style
from hydractl.reporting.comparison import Compared, Runtimes
from hydractl.reporting.head_maps import head_map, heads_figure
from hydractl.reporting.lineage import member_names
from hydractl.reporting.matplotlib_figure import SMALL, Canvas, Panel, Point, breadth, fitting
from hydractl.reporting.report_values import GROUPS, Quantity, format_value, number_text

COST_METRICS = ("accuracy", "nll", "auroc")
"""Metrics of the cost figure. Three panels fit next to each other."""
DIAGONAL = ((0.0, 0.0), (1.0, 1.0))
STEP, BAR, LABEL_GAP = 40.0, 12.0, 10.0
"""Height of a line of the runtime figure, thickness of its bar, and space before its label, in points."""


def figures(compared: Compared) -> Iterator[Figure]:
    """Yield every figure for which the reports have numbers."""
    own = {
        "risk": _risk, "reliability": _reliability, "roc": _roc, "cost": _cost, "heads": _heads, "runtime": _runtime,
    }  # fmt: skip
    for name, draw in own.items():
        yield from filter(None, (f(compared) for f in (draw, *functions_after("figures", name))))


def _cost(compared: Compared) -> Figure | None:
    """Return charts of quality against multiply-accumulates."""
    cost = Quantity("macs")
    means = {q.scope for q in compared.quantities} & {*GROUPS}
    qualities = [
        q
        for name in COST_METRICS
        for q in compared.quantities
        if q.name == name
        and not q.under_shift
        and (q.metric.needs is not MetricNeeds.OOD or q.scope == "all" or not means)
    ]
    return Figure.unless_empty(
        "cost",
        "Cost and quality",
        "Multiply-accumulates for one sample against quality. The dashed line joins the models that no other model beats in "
        "both. Bars are 95 % intervals.",
        [_frontier(compared, cost, quality) for quality in qualities],
        compared.names,
    )


def _frontier(compared: Compared, cost: Quantity, quality: Quantity) -> Panel | None:
    """Return a chart of the rows with both numbers, or `None` for fewer than two rows."""
    rows = [
        (i, row, numbers)
        for i, (row, numbers) in enumerate(compared.rows.items())
        if cost in numbers and quality in numbers
    ]
    if len(rows) < 2:
        return None
    metric, up = quality.metric, bool(quality.metric.higher_is_better)
    points = {row: (numbers[cost].value, numbers[quality].value) for _, row, numbers in rows}
    best = pareto(list(points.values()), up=up)
    return Chart(
        title=quality.label,
        description="; ".join(
            f"{row}: {number_text(cost.metric, numbers[cost])}, {number_text(metric, numbers[quality])}"
            for _, row, numbers in rows
        ),
        x=Axis(
            label="multiply-accumulates",
            low=0,
            written=lambda value: count(value).replace(".00", ""),
        ),
        y=Axis(label=f"{quality.heading}, {'higher' if up else 'lower'} is better"),
        series=[
            Series(
                points=[points[row]],
                style=series_style(i),
                kind="marks",
                spans=[numbers[quality].interval],
                titles=[f"{row}: {number_text(metric, numbers[quality])}"],
            )
            for i, row, numbers in rows
        ],
        guides=[best] if len(best) > 1 else [],
    ).panel()


def pareto(points: Sequence[Point], *, up: bool) -> list[Point]:
    """Return the points that no other point dominates, by increasing cost.

    Args:
        points: (cost, quality) of each model.
        up: Whether higher quality is better.
    """
    sign = 1 if up else -1
    front: list[Point] = []
    for point in sorted({*points}, key=lambda p: (p[0], -sign * p[1])):
        if not front or sign * point[1] > sign * front[-1][1]:
            front.append(point)
    return front


def _row_charts(
    compared: Compared, chart: Callable[[int, str, Sequence[Curves]], Panel | None]
) -> Iterator[Panel | None]:
    """Yield a chart for each row with curves.

    Args:
        compared: The reports.
        chart: Returns the chart for the row's index, the row's name, and the row's curves in every report.
    """
    for i, row in enumerate(compared.names):
        if row_curves := _curves(compared, row):
            yield chart(i, row, row_curves)


def _curves(compared: Compared, row: str) -> list[Curves]:
    """Return a row's curves in every report; empty if a report has no curves or other bins."""
    all_curves = [r.curves for report in compared.reports for r in report.rows if r.name == row]
    defined_curves = [curves for curves in all_curves if curves is not None]
    shapes = {len(curves.reliability.count) for curves in defined_curves}
    return defined_curves if len(defined_curves) == len(all_curves) and len(shapes) == 1 else []


def _reliability(compared: Compared) -> Figure | None:
    def chart(i: int, row: str, row_curves: Sequence[Curves]) -> Panel | None:
        bins = [bin_ for bin_ in pooled([curves.reliability for curves in row_curves]) if bin_[0]]
        if not bins:
            return None
        most = max(n for n, _, _ in bins)
        ece = Quantity("ece")
        calibration_error = compared.rows[row].get(ece)
        return Chart(
            title=row
            if calibration_error is None
            else f"{row}: ECE {format_value(ece.metric, calibration_error.value)}",
            description="; ".join(f"{n} at confidence {c:.3f}, accuracy {a:.3f}" for n, c, a in bins),
            x=Axis(label="confidence", low=0, high=1),
            y=Axis(label="accuracy", low=0, high=1),
            series=[
                Series(
                    points=[(c, a) for _, c, a in bins],
                    style=series_style(i),
                    kind="bars",
                    bar=0.045,
                    weights=[sqrt(n / most) for n, _, _ in bins],
                    titles=[
                        f"{counted(n, 'sample')}: confidence {c:.3f}, accuracy {a:.3f}" for n, c, a in bins
                    ],
                )
            ],
            guides=[DIAGONAL],
        ).panel()

    return Figure.unless_empty(
        "reliability",
        "Reliability",
        "How often predictions with a given confidence are right. Bars below the dashed line are overconfident. Bins are those of "
        "ECE; a bar stands at the mean confidence of its samples and is pale if they are few.",
        _row_charts(compared, chart),
    )


def pooled(every: Sequence[Bins]) -> list[tuple[int, float, float]]:
    """Combine the bins of several reports: (count, mean confidence, accuracy) of each bin."""
    bins = []
    for parts in zip(*(zip(b.count, b.confidence, b.accuracy, strict=True) for b in every), strict=True):
        number = sum(n for n, _, _ in parts)
        confidence, accuracy = (sum(part[0] * part[k] for part in parts) / max(1, number) for k in (1, 2))
        bins.append((number, confidence, accuracy))
    return bins


def _roc(compared: Compared) -> Figure | None:
    report = compared.reports[0]
    sets = dict.fromkeys(report.near, "near") | dict.fromkeys(report.far, "far")

    def chart(name: str) -> Panel:
        return Chart(
            title=f"{name} ({sets[name]} OOD)",
            description="; ".join(_numbers(compared, Quantity("auroc", name))) or "ROC curves",
            x=Axis(label="share of ID flagged", low=0, high=1),
            y=Axis(label="share of OOD flagged", low=0, high=1),
            series=_lines(compared, lambda curves: curves.roc[name]),
            guides=[DIAGONAL],
        ).panel()

    has_curves = any(_curves(compared, row) for row in compared.names)
    return Figure.unless_empty(
        "roc",
        "ROC",
        f"Share of out-of-distribution samples that `{report.ood_scores[0]}` flags, by the share of in-distribution samples that it flags "
        "too. The dashed line is chance.",
        map(chart, sets if has_curves else ()),
        compared.names,
    )


def _risk(compared: Compared) -> Figure | None:
    series = _lines(compared, lambda curves: curves.threshold or curves.risk)
    if not series:
        return None
    reports = compared.tests or compared.reports
    first = reports[0].rows[0].name
    rules = [row.threshold for report in reports for row in report.rows if row.name == first]
    bounds = [rule for rule in rules if rule is not None and rule.below is not None]
    points = [(rule.coverage, rule.errors / rule.accepted) for rule in bounds]
    titles = [f"threshold of {first}: {rule.summary}" for rule in bounds]
    mark = Series(
        points=points,
        style=series_style(compared.names.index(first)),
        kind="marks",
        spans=[None] * len(points),
        titles=titles,
    )
    highest = max(y for line in series for _, y in line.points)
    chart = Chart(
        title="Risk over coverage",
        description="; ".join([*_numbers(compared, Quantity("accuracy")), *titles]) or "risk over coverage",
        x=Axis(label="share answered, most certain first", low=0, high=1),
        y=Axis(label="share of these wrong", low=0),
        series=[*series, mark],
        guides=[((x, 0.0), (x, highest)) for x, _ in points],
    )
    scores = listed([*dict.fromkeys(f"`{rule.score}`" for rule in bounds)])
    has_own_curve = any(curves.threshold for curves in _curves(compared, first))
    note = (
        f" The mark is the threshold of {first} on {scores}; the share right of the dashed line is held back."
        + " The curves are for the samples and the score of the thresholds." * has_own_curve
        + " The curves are for the test data, the mark for the samples of the threshold."
        * bool(compared.tests)
    )
    return Figure.unless_empty(
        "risk",
        "Risk and coverage",
        "Share of wrong answers if the model answers only its most certain predictions. Lower is better."
        + note * bool(bounds),
        [chart.panel()],
        compared.names,
    )


def _numbers(compared: Compared, quantity: Quantity) -> list[str]:
    return [
        f"{row}: {quantity.label} {number_text(quantity.metric, numbers[quantity])}"
        for row, numbers in compared.rows.items()
        if quantity in numbers
    ]


def _lines(compared: Compared, pick: Callable[[Curves], Line]) -> list[Series]:
    """Return a line for each row, or for each row of each report."""
    series = []
    for i, row in enumerate(compared.names):
        row_lines = [pick(curves) for curves in _curves(compared, row)]
        series += [
            Series(
                points=[*zip(line.x, line.y, strict=True)],
                style=series_style(i),
                opacity=1.0 if len(row_lines) == 1 else SEVERAL,
                titles=[row],
            )
            for line in row_lines
        ]
    return series


def _heads(compared: Compared) -> Figure | None:
    pruned = [
        (file, row, origin)
        for file, report in zip(compared.files, compared.reports, strict=True)
        for row in report.rows
        for origin in row.origins
        if any(tower.removed for masks in origin.masks for tower in masks.values())
    ]
    several = len({row.name for _, row, _ in pruned}) > 1
    maps = [
        head_map(f"{name}, {tower}" if len(masks) > 1 else name, mask, place=", ".join(place))
        for file, row, origin in pruned
        for place in [[file] * (len(compared.files) > 1) + [row.name] * several]
        for name, masks in zip(
            member_names(origin) if len(origin.masks) > 1 else [origin.name], origin.masks, strict=True
        )
        for tower, mask in masks.items()
    ]
    return heads_figure(maps)


def _runtime(compared: Compared) -> Figure | None:
    runtimes = Runtimes.of(compared)
    if runtimes is None:
        return None
    bars = [
        (
            i,
            row,
            runtimes.seconds[row],
            f"{runtimes.seconds[row]:.3g} s, {runtimes.ratio(row):.2f} × {runtimes.fastest}",
        )
        for i, row in enumerate(compared.names)
        if row in runtimes.seconds
    ]
    return Figure.unless_empty(
        "runtime",
        "Time",
        f"Seconds for all {runtimes.samples} ID samples in batches of {runtimes.batch_size}: {runtimes.batches} times the median of a batch's "
        "forward pass, without reading data. Times depend on the machine and on the batch size. Ratios are to the fastest row, "
        f"{runtimes.fastest}.",
        [_bars(bars)],
    )


def _bars(bars: Sequence[tuple[int, str, float, str]]) -> Panel:
    """Return a bar for each row, below its name and label."""
    longest = max(value for _, _, value, _ in bars)
    height = STEP * len(bars)

    def draw(canvas: Canvas) -> None:
        for place, (i, row, value, label) in enumerate(bars):
            y, width = 14.0 + STEP * place, max(1.0, WIDTH * value / longest)
            canvas.write(0, y, fitting(row, WIDTH - breadth(label, SMALL) - LABEL_GAP))
            canvas.write(WIDTH, y, label, anchor="right", colour="soft", size=SMALL)
            canvas.rectangles([(0, y + 5)], (width, BAR), series_style(i).paint, tooltip=f"{row}: {label}")

    description = "; ".join(f"{row}: {label}" for _, row, _, label in bars)
    return Panel(title="Time", description=description, width=WIDTH, height=height, draw=draw)
