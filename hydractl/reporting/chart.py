"""Charts: what is to be seen of numbers, laid out on a sheet of the width of a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, cos, floor, log10, pi, sin
from typing import Literal, NamedTuple

from hydractl.reporting.svg import (
    DASHES,
    LINES,
    TEXT,
    Drawing,
    Point,
    SvgPath,
    SvgText,
    breadth,
    fitting,
    joined,
)

WIDTH, HEIGHT = 330.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 30.0, 42.0
TICKS = 5
LARGEST = 1e300
"""More could not be drawn in proportion."""
SEVERAL = 0.55
"""The opacity of one line of several of a row."""
PALEST = 0.2
"""The opacity of a bar of nothing."""
DOT, ROUND = 2.2, 8
"""The radius of one of many dots, and with how many corners it is round."""
CORNERS = (16, 4, 3, 5)
"""Of marks: circle, diamond, triangle, pentagon."""


class SeriesStyle(NamedTuple):
    """How a row is told from others, also without colours."""

    paint: str
    dash: str
    corners: int


def series_style(index: int) -> SeriesStyle:
    """Return the look of one of many rows; no two of the first twenty-four are the same."""
    turn = index + index // (2 * len(LINES))
    return SeriesStyle(LINES[index % len(LINES)], DASHES[turn % len(DASHES)], CORNERS[turn % len(CORNERS)])


ACROSS = 3
"""Panels of a file side by side, at most."""
SAMPLE, LINE = 38.0, 18.0
"""How long a sample of a row's look is, and how high a line of them."""
BESIDE, BETWEEN = 8.0, 22.0
"""What parts a sample from its name, and a name from the next sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Panels that show one thing.

    Attributes:
        name: Of its file.
        title: What it shows.
        description: How to read it.
        panels: Drawings.
        names: Of what colours and marks tell apart in every panel, in the order of their looks; none where panels say it.
    """

    name: str
    title: str
    description: str
    panels: tuple[Drawing, ...]
    names: tuple[str, ...] = ()

    @classmethod
    def unless_empty(
        cls,
        name: str,
        title: str,
        description: str,
        panels: Iterable[Drawing | None],
        names: Sequence[str] = (),
    ) -> Figure | None:
        """Return a figure of those panels that are one; None where there is none."""
        drawings = tuple(panel for panel in panels if panel is not None)
        return (
            cls(name=name, title=title, description=description, panels=drawings, names=tuple(names))
            if drawings
            else None
        )

    def sheet(self) -> Drawing:
        """Return all panels on one, in rows of much the same number, below what their colours and marks mean."""
        across = ceil(len(self.panels) / ceil(len(self.panels) / ACROSS))
        rows = [self.panels[i : i + across] for i in range(0, len(self.panels), across)]
        width = max(sum(panel.width for panel in row) for row in rows)
        return joined(
            self.title, self.description, [(legend(self.names, width),), *rows] if self.names else rows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a chart, from `low` to a greater `high`."""

    label: str
    low: float = 0.0
    high: float = 1.0
    written: Callable[[float], str] = "{:g}".format

    @classmethod
    def around(cls, label: str, values: Sequence[float], *, written: Callable[[float], str]) -> Axis:
        """Return an axis with all values well inside it."""
        low, high = max(min(values), -LARGEST), min(max(values), LARGEST)
        room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(label=label, low=low - room, high=high + room, written=written)

    def ticks(self) -> list[float]:
        """Return round values along it."""
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** floor(log10(rough))
        step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
        first = int(-(-self.low // step))
        every = (round(i * step, 12) for i in range(first, first + TICKS + 2))
        return [value for value in every if self.low <= value <= self.high]

    def share(self, value: float) -> float:
        """Return where a value stands, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together.

    Attributes:
        points: Of a line, or marks; of bars the middle of each and its height.
        style: Of the row that they are of.
        kind: What is drawn: a line through them, bars up from the axis, a mark at each, or a dot at each of very many.
        bar: How wide a bar is.
        spans: Of marks: from where to where each may be, along y.
        opacity: Of one of several such lines.
        weights: Of bars: how much there is behind each, at most 1; those of little are pale.
        titles: What is said of each mark or bar where it is pointed at; of a line, of it all.
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
    """Two axes, what is drawn between them, and lines to hold it against."""

    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    guides: Sequence[Sequence[Point]] = ()

    def drawing(self) -> Drawing:
        """Lay it out."""
        shapes = [*self._frame()]
        for series in self.series:
            shapes += self._series_paths(series)
        for guide in self.guides:
            shapes.append(SvgPath(parts=[[*map(self._at, guide)]], stroke="soft", dash="4 3"))
        return Drawing(
            title=self.title, description=self.description, width=WIDTH, height=HEIGHT, shapes=shapes
        )

    def _at(self, point: Point) -> Point:
        return (
            LEFT + self.x.share(point[0]) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.share(point[1]) * (HEIGHT - BOTTOM - TOP),
        )

    def _frame(self) -> Iterator[SvgPath | SvgText]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        yield SvgText(at=(LEFT, 16), text=fitting(self.title, WIDTH - LEFT, TEXT + 1), size=TEXT + 1)
        across = [self._at((value, self.y.low)) for value in self.x.ticks()]
        up = [self._at((self.x.low, value)) for value in self.y.ticks()]
        grid = [[(x, TOP), (x, bottom)] for x, _ in across] + [[(LEFT, y), (right, y)] for _, y in up]
        yield SvgPath(parts=grid, stroke="rule", width=0.75)
        for (x, y), value in zip(across, self.x.ticks(), strict=True):
            yield SvgText(
                at=(x, y + 14), text=self.x.written(value), anchor="middle", paint="soft", size=TEXT - 1
            )
        for (x, y), value in zip(up, self.y.ticks(), strict=True):
            yield SvgText(
                at=(x - 5, y + 3.5), text=self.y.written(value), anchor="end", paint="soft", size=TEXT - 1
            )
        yield SvgPath(parts=[[(LEFT, TOP), (LEFT, bottom), (right, bottom)]], stroke="soft")
        yield SvgText(at=((LEFT + right) / 2, HEIGHT - 8), text=self.x.label, anchor="middle")
        yield SvgText(at=(9, (TOP + bottom) / 2), text=self.y.label, anchor="middle", turned=True)

    def _series_paths(self, series: Series) -> Iterator[SvgPath]:
        paint, dash, corners = series.style
        if series.kind == "line":
            yield SvgPath(
                parts=[[*map(self._at, series.points)]],
                stroke=paint,
                width=1.8,
                dash=dash,
                opacity=series.opacity,
                title=" ".join(series.titles),
            )
            return
        if series.kind == "dots":
            dots = [mark(self._at(point), min(corners, ROUND), DOT) for point in series.points]
            yield SvgPath(parts=dots, fill=paint, opacity=series.opacity, title=" ".join(series.titles))
            return
        titles = series.titles or [""] * len(series.points)
        if series.kind == "bars":
            for point, weight, title in zip(series.points, series.weights, titles, strict=True):
                opacity = PALEST + (1 - PALEST) * weight
                yield SvgPath(parts=[self._bar(point, series.bar)], fill=paint, opacity=opacity, title=title)
            return
        for point, span, title in zip(series.points, series.spans, titles, strict=True):
            if span is not None:
                yield SvgPath(parts=[[self._at((point[0], end)) for end in span]], stroke=paint, width=1.5)
            yield SvgPath(parts=[mark(self._at(point), corners)], fill=paint, stroke="sheet", title=title)

    def _bar(self, point: Point, wide: float) -> list[Point]:
        x, y = point
        left, right = max(x - wide / 2, self.x.low), min(x + wide / 2, self.x.high)
        return [*map(self._at, ((left, self.y.low), (left, y), (right, y), (right, self.y.low)))]


def mark(at: Point, corners: int, radius: float = 5.0) -> list[Point]:
    """Return a shape of so many corners around a point, one of them at the top."""
    angles = [2 * pi * i / corners for i in range(corners)]
    return [(at[0] + radius * sin(angle), at[1] - radius * cos(angle)) for angle in angles]


def sample(index: int, name: str) -> Drawing:
    """Return what one of many rows looks like."""
    shapes = [*_sample(index, name, (0.0, LINE / 2))]
    return Drawing(title=name, description="Its line and its mark", width=SAMPLE, height=LINE, shapes=shapes)


def legend(names: Sequence[str], width: float) -> Drawing:
    """Return what rows look like: side by side in lines of a width, in which the longest names are cut."""
    shapes: list[SvgPath | SvgText] = []
    x, y = 0.0, LINE / 2
    for i, name in enumerate(names):
        text = fitting(name, width - SAMPLE - BESIDE)
        end = x + SAMPLE + BESIDE + breadth(text)
        if end > width and x:
            x, y, end = 0.0, y + LINE, end - x
        shapes += _sample(i, name, (x, y))
        shapes.append(SvgText(at=(x + SAMPLE + BESIDE, y + 4), text=text))
        x = end + BETWEEN
    description = "Colour and mark of each row: " + ", ".join(names)
    return Drawing(title="Legend", description=description, width=width, height=y + LINE, shapes=shapes)


def _sample(index: int, name: str, at: Point) -> Iterator[SvgPath]:
    style, (x, y) = series_style(index), at
    yield SvgPath(parts=[[(x, y), (x + SAMPLE, y)]], stroke=style.paint, width=1.8, dash=style.dash)
    yield SvgPath(
        parts=[mark((x + SAMPLE / 2, y), style.corners)], fill=style.paint, stroke="sheet", title=name
    )
