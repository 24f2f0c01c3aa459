"""Charts with the width of a phone, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hydractl.reporting.matplotlib_figure import (
    LIGHT,
    PAINTS,
    SMALL,
    TEXT,
    Canvas,
    Panel,
    Point,
    breadth,
    fitting,
    gid,
    printable,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

WIDTH, HEIGHT = 330.0, 250.0
"""Size of a chart in points. Chosen by hand for a phone in portrait orientation; twice the width must be
scrolled there."""
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 30.0, 42.0
"""Margins around the axes of a chart in points, with room for labels."""
TICKS = 5
"""Maximum number of intervals between ticks. Chosen by hand; twice the number crowds the labels."""
LARGEST = 1e300
"""Maximum absolute coordinate. Differences of larger numbers overflow float64 in matplotlib."""
MARGIN = 0.1
"""Space between data and the frame, as a fraction of the data's range. Chosen by hand; doubling the margin
shrinks the data by about a seventh."""
SEVERAL = 0.55
"""Opacity of a row's lines if the row has several lines, so that overlaps are visible. Chosen by hand."""
PALEST = 0.2
"""Opacity of a bar with few samples. Chosen by hand; twice the opacity makes the difference from other bars
smaller."""
DOT = 4.4
"""Diameter of a dot in points, for charts with many dots. Chosen by hand; twice the diameter hides dots
behind others."""
LINES = tuple(name for name in PAINTS if name[1:].isdigit())
DASHES: tuple[Sequence[float], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
MARKERS = ("o", "D", "^", "p")
ACROSS = 3
"""Maximum number of panels next to each other in a file. Chosen by hand; twice the number halves the size of
panels on a page."""
EDGE, HEADING = 12.0, 14.0
"""Margin of a file, and font size of its title, in points."""
SAMPLE, LINE = 38.0, 18.0
"""Length of a line in a legend, and height of an entry, in points."""
BESIDE, BETWEEN = 8.0, 22.0
"""Space between a legend's line and name, and between its columns, in points."""


class SeriesStyle(NamedTuple):
    """Look of a row. Rows differ in dashes and markers too, for readers who cannot distinguish colours.

    Attributes:
        paint: Name of a colour in `PAINTS`.
        dash: Lengths of dashes and gaps in points; empty for a solid line.
        marker: Marker of matplotlib.
    """

    paint: str
    dash: Sequence[float]
    marker: str

    def line(self) -> dict[str, Any]:
        """Return matplotlib's options of a line. matplotlib counts dashes in line widths."""
        width = 1.8
        dash = [length / width for length in self.dash]
        return {"color": LIGHT[self.paint], "linestyle": (0, dash) if dash else "-", "linewidth": width}

    def mark(self) -> dict[str, Any]:
        """Return matplotlib's options of a marker."""
        colours = {"color": LIGHT[self.paint], "markeredgecolor": LIGHT["sheet"]}
        return colours | {"marker": self.marker, "markersize": 8, "linestyle": ""}


def series_style(index: int) -> SeriesStyle:
    """Return the look of a row by its index. The first 24 looks differ."""
    turn = index + index // (2 * len(LINES))
    return SeriesStyle(LINES[index % len(LINES)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels about one subject.

    Attributes:
        name: Name of the file.
        title: Subject.
        description: Explanation for readers.
        panels: At least one panel.
        names: Names in the legend, in the order of looks; empty if the panels have names.
    """

    name: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def unless_empty(
        cls,
        name: str,
        title: str,
        description: str,
        panels: Iterable[Panel | None],
        names: Sequence[str] = (),
    ) -> Figure | None:
        """Return a figure of all panels that are not `None`, or `None` without panels."""
        drawn = tuple(panel for panel in panels if panel is not None)
        return (
            cls(name=name, title=title, description=description, panels=drawn, names=tuple(names))
            if drawn
            else None
        )

    def sheet(self) -> Panel:
        """Return one panel with title, legend and all panels, in rows of about equal length."""
        across = ceil(len(self.panels) / ceil(len(self.panels) / ACROSS))
        rows = [self.panels[i : i + across] for i in range(0, len(self.panels), across)]
        width = max(sum(panel.width for panel in row) for row in rows) + 2 * EDGE
        if self.names:
            rows.insert(0, (legend(self.names, width - 2 * EDGE),))
        places: list[tuple[Panel, float, float]] = []
        top = 2 * EDGE + HEADING
        for row in rows:
            left = EDGE
            for panel in row:
                places.append((panel, left, top))
                left += panel.width
            top += max(panel.height for panel in row)
        height = top + EDGE

        def draw(canvas: Canvas) -> None:
            canvas.write(EDGE, EDGE + HEADING, self.title, size=HEADING)
            for panel, x, y in places:
                panel.draw(Canvas(canvas.figure, x, y))

        return Panel(title=self.title, description=self.description, width=width, height=height, draw=draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart.

    Attributes:
        label: Label.
        low: Lower end. `None` for the data's minimum with a margin.
        high: Upper end, above `low`. `None` for the data's maximum with a margin.
        written: Returns the text of a tick.
    """

    label: str
    low: float | None = None
    high: float | None = None
    written: Callable[[float], str] = "{:.4g}".format


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one row.

    Attributes:
        points: Points of a line, positions of marks or dots, or top centres of bars.
        style: Look of the row.
        kind: A line, bars from the axis, a mark at each point, or small dots for many points.
        bar: Width of a bar.
        spans: Interval along y of each mark, or `None`.
        opacity: Opacity of lines and dots.
        weights: Opacity of each bar, in [0, 1].
        titles: Tooltip of each mark or bar, or a single tooltip of a line.
    """

    points: Sequence[Point]
    style: SeriesStyle
    kind: Literal["line", "bars", "marks", "dots"] = "line"
    bar: float = 0.0
    spans: Sequence[tuple[float, float] | None] = ()
    opacity: float = 1.0
    weights: Sequence[float] = ()
    titles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series between two axes.

    Attributes:
        title: Title above the axes.
        description: Content for screen readers.
        x: Horizontal axis.
        y: Vertical axis.
        series: The series.
        guides: Dashed reference lines.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    guides: Sequence[Sequence[Point]] = ()

    def panel(self) -> Panel:
        """Return the chart as a panel."""
        return Panel(
            title=self.title, description=self.description, width=WIDTH, height=HEIGHT, draw=self._draw
        )

    def _draw(self, canvas: Canvas) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415 - slow, and only needed for a figure

        canvas.write(LEFT, 16, fitting(self.title, WIDTH - LEFT, TEXT + 1), size=TEXT + 1)
        axes = canvas.axes(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)
        axes.set_xlabel(printable(self.x.label), fontsize=TEXT, color=LIGHT["ink"])
        axes.set_ylabel(printable(self.y.label), fontsize=TEXT, color=LIGHT["ink"])
        axes.yaxis.set_label_coords(-(LEFT - TEXT) / (WIDTH - LEFT - RIGHT), 0.5)
        axes.grid(color=LIGHT["rule"], linewidth=0.75)
        axes.tick_params(length=0, pad=4, labelsize=SMALL, labelcolor=LIGHT["soft"])
        for side, axis in ((axes.xaxis, self.x), (axes.yaxis, self.y)):
            side.set_major_locator(MaxNLocator(nbins=TICKS, steps=[1, 2, 5, 10]))
            side.set_major_formatter(FuncFormatter(lambda value, _, written=axis.written: written(value)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(LIGHT["soft"])
        for series in self.series:
            self._draw_series(axes, series)
        for guide in self.guides:
            axes.plot(*_coordinates(guide), color=LIGHT["soft"], linestyle=(0, (4, 3)), linewidth=1)
        axes.margins(MARGIN)
        axes.set(xlim=(self.x.low, self.x.high), ylim=(self.y.low, self.y.high))

    def _draw_series(self, axes: Axes, series: Series) -> None:
        style, colour = series.style, LIGHT[series.style.paint]
        x, y = _coordinates(series.points)
        titles = [gid(title) for title in series.titles]
        if series.kind == "line":
            axes.plot(x, y, **style.line(), alpha=series.opacity, gid=titles[0], clip_on=False)
        elif series.kind == "dots":
            axes.plot(
                x, y, marker=style.marker, markersize=DOT, markeredgewidth=0, linestyle="", color=colour,
                alpha=series.opacity, gid=titles[0], clip_on=False,
            )  # fmt: skip
        elif series.kind == "bars":
            for bar, weight, title in zip(
                axes.bar(x, y, series.bar, color=colour),
                series.weights,
                titles,
                strict=True,
            ):
                bar.set(alpha=PALEST + (1 - PALEST) * weight, gid=title)
        else:
            for i, (span, title) in enumerate(zip(series.spans, titles, strict=True)):
                if span is not None:
                    ends = _coordinates([(x[i], end) for end in span])
                    axes.plot(*ends, color=colour, linewidth=1.5, clip_on=False)
                axes.plot(x[i : i + 1], y[i : i + 1], **style.mark(), gid=title, clip_on=False)


def _coordinates(points: Sequence[Point]) -> NDArray[np.float64]:
    """Return points as an array (2, N), clipped to `LARGEST`."""
    return np.clip(np.reshape(np.array(points, dtype=np.float64), (-1, 2)).T, -LARGEST, LARGEST)


def sample(index: int, name: str) -> Panel:
    """Return the look of a row as a panel: its line and its marker."""

    def draw(canvas: Canvas) -> None:
        _sample(canvas, index, 0.0, LINE / 2)

    return Panel(title=name, description="Its line and its mark", width=SAMPLE, height=LINE, draw=draw)


def legend(names: Sequence[str], width: float) -> Panel:
    """Return a legend in equal columns. Names are shortened to the width."""
    texts = [fitting(name, width - SAMPLE - BESIDE) for name in names]
    column = SAMPLE + BESIDE + BETWEEN + max(map(breadth, texts))
    columns = min(len(texts), max(1, int((width + BETWEEN) // column)))
    height = LINE * (ceil(len(texts) / columns) + 1)

    def draw(canvas: Canvas) -> None:
        for i, text in enumerate(texts):
            x, y = column * (i % columns), LINE * (i // columns + 0.5)
            _sample(canvas, i, x, y)
            canvas.write(x + SAMPLE + BESIDE, y + 4, text)

    description = "Colour and mark of each row: " + ", ".join(names)
    return Panel(title="Legend", description=description, width=width, height=height, draw=draw)


def _sample(canvas: Canvas, index: int, x: float, y: float) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above

    style = series_style(index)
    options = style.mark() | style.line()
    canvas.add(Line2D([x, x + SAMPLE / 2, x + SAMPLE], [y] * 3, markevery=[1], **options))
