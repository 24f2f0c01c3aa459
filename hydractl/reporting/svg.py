"""Drawings: paths and texts on a sheet, as SVG that follows the reader's light or dark scheme, or as PNG in the light one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

from hydractl.errors import shortened
from hydractl.reporting.matplotlib_figure import picture, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point: TypeAlias = tuple[float, float]
Anchor: TypeAlias = Literal["start", "middle", "end"]

PAINTS = {
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59636e", "#a5adb8"),
    "rule": ("#d4d9df", "#3a424c"),
    "sheet": ("#ffffff", "#15191e"),
    # Okabe and Ito 2008, but for black and yellow, which a sheet would hide; lighter on a dark one
    "c0": ("#0072b2", "#56b4f5"),
    "c1": ("#d55e00", "#ff8f3f"),
    "c2": ("#009e73", "#35cfa2"),
    "c3": ("#cc79a7", "#eba3cb"),
    "c4": ("#b97700", "#f2bd45"),
    "c5": ("#3d9cd2", "#a9dcfa"),
}
"""Every colour by its name, on a light sheet and on a dark one."""
LINES = tuple(name for name in PAINTS if name[1:].isdigit())
DASHES = ("", "6 3", "2 2", "8 3 2 3")
TEXT = 11.0
MARK = "hydractl report"
"""Stands in every file of a report."""
EDGE = 12.0
"""Empty space around what a file shows."""
HEADING = 14.0
"""The letters of a file's title."""
RESOLUTION = 2
"""Pixels of a PNG for each unit of a drawing."""
BREADTHS = {
    0.41: " !'(),-./:;IJ[\\]fijlrt|",
    0.64: '"*?FLPTY_`$abcdeghknopqsuvxyz{}0123456789',
    0.84: "#&+<=>ABCDEGHKNOQRSUVXZ^w~",
}
"""Letters that take so much of their size at most, in DejaVu Sans, which is wider than what browsers have by default."""
BROADEST = 1.1
"""Likewise, all others, but for a few ligatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgPath:
    """Lines, or filled shapes.

    Attributes:
        parts: The points of each.
        stroke: The name of a colour; none where empty.
        fill: Likewise; a shape that is filled is closed.
        width: Of the stroke.
        dash: One of `DASHES`.
        opacity: Of it all.
        title: What is said of it where it is pointed at.
    """

    parts: Sequence[Sequence[Point]]
    stroke: str = ""
    fill: str = ""
    width: float = 1.0
    dash: str = ""
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgText:
    """One line of text; `turned` ones run upwards."""

    at: Point
    text: str
    anchor: Anchor = "start"
    paint: str = "ink"
    size: float = TEXT
    turned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A sheet with what is on it; `title` and `description` say it to those who do not see it."""

    title: str
    description: str
    width: float
    height: float
    shapes: Sequence[SvgPath | SvgText]


def breadth(text: str, size: float = TEXT) -> float:
    """Return how wide a text is at most."""
    printed = printable(text)
    return size * sum(
        next((wide for wide, letters in BREADTHS.items() if letter in letters), BROADEST)
        for letter in printed
    )


def fitting(text: str, width: float, size: float = TEXT) -> str:
    """Return a text without so much of its middle that it fits; what is left has a letter at least."""
    cuts = (shortened(text, letters) for letters in range(len(text), 0, -1))
    return next((cut for cut in cuts if breadth(cut, size) <= width), "…")


def joined(title: str, description: str, rows: Sequence[Sequence[Drawing]]) -> Drawing:
    """Return rows of drawings side by side, one below the other under their title: a sheet that is read by itself."""
    shapes: list[SvgPath | SvgText] = [SvgText(at=(EDGE, EDGE + HEADING), text=title, size=HEADING)]
    top = 2 * EDGE + HEADING
    for row in rows:
        left = EDGE
        for drawing in row:
            shapes += (_moved(shape, left, top) for shape in drawing.shapes)
            left += drawing.width
        top += max(drawing.height for drawing in row)
    width = max(sum(drawing.width for drawing in row) for row in rows)
    return Drawing(
        title=title, description=description, width=width + 2 * EDGE, height=top + EDGE, shapes=shapes
    )


def _moved(shape: SvgPath | SvgText, right: float, down: float) -> SvgPath | SvgText:
    if isinstance(shape, SvgText):
        return replace(shape, at=(shape.at[0] + right, shape.at[1] + down))
    return replace(shape, parts=[[(x + right, y + down) for x, y in part] for part in shape.parts])


def style() -> str:
    """Return the colours as CSS: dark ones on screens whose reader wants them."""
    light, dark = (";".join(f"--{name}:{shades[i]}" for name, shades in PAINTS.items()) for i in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def svg(drawing: Drawing, *, standalone: bool = False) -> str:
    """Return a drawing as an `svg` element, in the colours of the page that it stands on; `standalone`, as a file of its own."""
    size = f"{_number(drawing.width)} {_number(drawing.height)}"
    sheet = (
        f'<!-- {MARK} --><style>{style()}</style><rect width="100%" height="100%" fill="var(--sheet)"/>'
        if standalone
        else ""
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" '
        f'font-family="system-ui,sans-serif"><title>{_literal(drawing.title)}</title>'
        f"<desc>{_literal(drawing.description)}</desc>{sheet}{''.join(map(_element, drawing.shapes))}</svg>\n"
    )


def png(drawing: Drawing) -> bytes:
    """Return a drawing as a PNG file."""
    return picture(lambda figure: _paint(figure, drawing), suffix=".png", dpi=72 * RESOLUTION, software=MARK)


def _element(shape: SvgPath | SvgText) -> str:
    if isinstance(shape, SvgText):
        x, y = map(_number, shape.at)
        turned = f' transform="rotate(-90 {x} {y})"' if shape.turned else ""
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return (
            f'<text x="{x}" y="{y}" font-size="{_number(shape.size)}" fill="var(--{shape.paint})"{anchor}{turned}>'
            f"{_literal(shape.text)}</text>"
        )
    title = f"<title>{_literal(shape.title)}</title>" if shape.title else ""
    return f'<path d="{_path_data(shape)}" {" ".join(_attributes(shape))}>{title}</path>'


def _attributes(shape: SvgPath) -> Iterator[str]:
    yield f'fill="var(--{shape.fill})"' if shape.fill else 'fill="none"'
    if shape.stroke:
        yield f'stroke="var(--{shape.stroke})" stroke-width="{_number(shape.width)}"'
    if shape.dash:
        yield f"stroke-dasharray={quoteattr(shape.dash)}"
    if shape.opacity != 1:
        yield f'opacity="{_number(shape.opacity)}"'


def _path_data(shape: SvgPath) -> str:
    end = "Z" if shape.fill else ""
    return "".join(
        "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in part) + end for part in shape.parts
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _literal(text: str) -> str:
    return escape(printable(text))


def _paint(figure: Figure, drawing: Drawing) -> None:
    from matplotlib.patches import PathPatch  # noqa: PLC0415 - slow, and only needed for a picture
    from matplotlib.path import Path as Outline  # noqa: PLC0415 - as above

    figure.set_size_inches(drawing.width / 72, drawing.height / 72)  # a unit is a point
    axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    light = {name: shades[0] for name, shades in PAINTS.items()} | {"": "none"}
    for shape in drawing.shapes:
        if isinstance(shape, SvgText):
            align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
            axes.text(
                *shape.at, printable(shape.text), ha=align, va="baseline", rotation=90 * shape.turned,
                rotation_mode="anchor", fontsize=shape.size * 0.92, color=light[shape.paint], parse_math=False,
            )  # fmt: skip
            continue
        if not shape.parts:
            continue
        points = [point for part in shape.parts for point in part]
        codes = [Outline.LINETO if i else Outline.MOVETO for part in shape.parts for i in range(len(part))]
        dash = [float(dash_length) / shape.width for dash_length in shape.dash.split()]
        axes.add_patch(
            PathPatch(
                Outline(points, codes),
                facecolor=light[shape.fill],
                edgecolor=light[shape.stroke],
                alpha=shape.opacity,
                linewidth=shape.width if shape.stroke else 0,
                linestyle=(0, dash) if dash else "solid",
            )
        )
