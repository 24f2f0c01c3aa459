"""Image files from matplotlib, with the same bytes on every machine and without a date.

SVG files follow the reader's light or dark colour scheme; PNG files use the light scheme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, unquote

import numpy as np

from hydractl.errors import UsageError, is_safe, shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ft2font import FT2Font

Point: TypeAlias = tuple[float, float]

RESOLUTION = 2
"""Pixels of a PNG per point, for sharp text on dense screens. Chosen by hand; doubling the resolution
quadruples the number of pixels."""
TEXT, SMALL = 10.0, 9.0
"""Font sizes in points."""
MARK = "hydractl report"
"""Text that marks every file of a report."""
TOOLTIP = "tooltip:"
"""Prefix of an artist's gid. The rest of the gid is the tooltip."""
PAINTS = {
    "ink": ("#1b1f24", "#e8eaed"),
    "soft": ("#59636e", "#a5adb8"),
    "rule": ("#d4d9df", "#3a424c"),
    "sheet": ("#ffffff", "#15191e"),
    # Okabe and Ito 2008, without black and yellow, which are invisible on one of the two backgrounds
    "c0": ("#0072b2", "#56b4f5"),
    "c1": ("#d55e00", "#ff8f3f"),
    "c2": ("#009e73", "#35cfa2"),
    "c3": ("#cc79a7", "#eba3cb"),
    "c4": ("#b97700", "#f2bd45"),
    "c5": ("#3d9cd2", "#a9dcfa"),
}
"""Colours by name: (light scheme, dark scheme)."""
LIGHT = {name: light for name, (light, _) in PAINTS.items()}
_NAMES = {light: name for name, light in LIGHT.items()}
_LIGHT = re.compile("|".join(_NAMES))


class Canvas:
    """Part of a figure, with coordinates in points from its upper left corner (x, y)."""

    def __init__(self, figure: Figure, x: float = 0.0, y: float = 0.0) -> None:
        from matplotlib.transforms import Affine2D  # noqa: PLC0415 - slow, and only needed for a figure

        self.figure, self.x, self.y = figure, x, y
        width, height = 72 * figure.get_size_inches()
        self.to_figure = Affine2D().translate(x, y).scale(1 / width, -1 / height).translate(0, 1)

    def add(self, artist: Artist) -> None:
        """Add an artist of matplotlib in the coordinates of the canvas."""
        artist.set_transform(self.to_figure + self.figure.transFigure)
        self.figure.add_artist(artist)

    def write(
        self, x: float, y: float, text: str, *, anchor: str = "left", colour: str = "ink", size: float = TEXT
    ) -> None:
        """Write a line of text. `y` is the baseline."""
        from matplotlib.text import Text  # noqa: PLC0415 - as above

        self.add(Text(x, y, printable(text), ha=anchor, va="baseline", fontsize=size, color=LIGHT[colour]))

    def rectangles(
        self, corners: Sequence[Point], size: Point, colour: str, *, tooltip: str = "", opacity: float = 1.0
    ) -> None:
        """Add rectangles of equal size, drawn together.

        Args:
            corners: Upper left corners.
            size: (width, height).
            colour: Name of a colour in `PAINTS`.
            tooltip: Tooltip of the patch.
            opacity: In [0, 1]; 0 draws outlines.
        """
        from matplotlib.patches import PathPatch  # noqa: PLC0415 - as above
        from matplotlib.path import Path  # noqa: PLC0415 - as above

        if corners:
            outline = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]) * size
            path = Path.make_compound_path_from_polys(np.array(corners)[:, None] + outline)
            fill = {"alpha": opacity, "linewidth": 0} if opacity else {"fill": False, "linewidth": 0.75}
            self.add(PathPatch(path, color=LIGHT[colour], gid=gid(tooltip), **fill))

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Add axes with these edges, in points from the upper left corner of the canvas."""
        (x0, y0), (x1, y1) = self.to_figure.transform([(left, bottom), (right, top)])
        return self.figure.add_axes((x0, y0, x1 - x0, y1 - y0), facecolor="none", axisbelow=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of a fixed size.

    Attributes:
        title: Name for screen readers.
        description: Content for screen readers.
        width: Width in points.
        height: Height in points.
        draw: Draws on a canvas of this size.
    """

    title: str
    description: str
    width: float
    height: float
    draw: Callable[[Canvas], None]


def picture(panel: Panel, *, suffix: str, salt: str = "") -> bytes:
    """Return the file of a panel. The user's matplotlib settings have no effect.

    Args:
        panel: The panel.
        suffix: `.png` or `.svg`.
        salt: Text that makes the ids of an SVG different from ids of files with other salts.

    Raises:
        UsageError: If the environment names a backend that matplotlib does not know.
    """
    try:
        from matplotlib import rc_context, rcParamsDefault  # noqa: PLC0415 - slow, and only needed for a figure
    except ValueError as error:  # raised at import by the value of MPLBACKEND
        raise UsageError(f"matplotlib does not start: {error}", hint="unset MPLBACKEND") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    settings = {k: v for k, v in rcParamsDefault.items() if not k.startswith(("backend", "interactive"))}
    settings |= {
        "svg.hashsalt": f"hydractl {salt}", "svg.fonttype": "none", "text.parse_math": False,
        "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"],
    }  # fmt: skip
    is_svg = suffix == ".svg"
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type")) if is_svg else {"Software": MARK}
    with rc_context(settings), warnings.catch_warnings():
        # DejaVu Sans lacks some letters of names, and matplotlib warns for each letter
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        size = (panel.width / 72, panel.height / 72)
        figure = Figure(figsize=size, facecolor="none" if is_svg else LIGHT["sheet"])
        FigureCanvasAgg(figure)
        panel.draw(Canvas(figure))
        file = io.BytesIO()
        figure.savefig(file, format=suffix.removeprefix("."), dpi=72 * RESOLUTION, metadata=metadata)
    return file.getvalue()


def svg(panel: Panel, salt: str = "", *, standalone: bool = False) -> str:
    """Return the `svg` element of a panel.

    Args:
        panel: The panel.
        salt: Text that differs between the panels of a page, for distinct ids.
        standalone: Whether the element is a file with colours of its own. Otherwise the element uses the
            colours of the page.
    """
    text = picture(panel, suffix=".svg", salt=salt).decode()
    # remove the ids of groups, because matplotlib uses the same ids in all figures
    body = re.sub(r'<g id="([^"]*)"(/?)>', _group, text[text.index("<g ") :])
    body = re.sub("<[^>]*>", lambda tag: _LIGHT.sub(lambda light: f"var(--{_NAMES[light[0]]})", tag[0]), body)
    sheet = (
        f'<!-- {MARK} --><style>{style()}</style><rect width="100%" height="100%" fill="var(--sheet)"/>'
        if standalone
        else ""
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 0 {panel.width:g} {panel.height:g}"><title>{escape(printable(panel.title))}</title>'
        f"<desc>{escape(printable(panel.description))}</desc>{sheet}{body}"
    )


def png(panel: Panel) -> bytes:
    """Return the PNG file of a panel."""
    return picture(panel, suffix=".png")


def style() -> str:
    """Return the colours as CSS variables, with dark colours for screens in dark mode."""
    light, dark = (";".join(f"--{name}:{shades[i]}" for name, shades in PAINTS.items()) for i in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def gid(tooltip: str) -> str:
    """Return the gid of an artist with a tooltip."""
    return f"{TOOLTIP}{quote(printable(tooltip))}" if tooltip else ""


def _group(match: re.Match[str]) -> str:
    gid, end = match.groups()
    title = unquote(gid.removeprefix(TOOLTIP))
    return f"<g><title>{escape(title)}</title>" if gid.startswith(TOOLTIP) else f"<g{end}>"


def breadth(text: str, size: float = TEXT) -> float:
    """Return the width of a text in DejaVu Sans, in points. Default fonts of browsers are narrower."""
    return size * sum(map(_advance, printable(text)))


def fitting(text: str, width: float, size: float = TEXT) -> str:
    """Return a text shortened in the middle to a width in points, with at least one letter."""
    cuts = (shortened(text, letters) for letters in range(len(text), 0, -1))
    return next((cut for cut in cuts if breadth(cut, size) <= width), "…")


@cache
def _font() -> FT2Font:
    from matplotlib import get_data_path  # noqa: PLC0415 - as above
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415 - as above

    font = FT2Font(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    font.set_size(1000, 72)
    return font


@cache
def _advance(letter: str) -> float:
    """Return the width of a letter in ems.

    For letters missing in the font the width is 1.1, the width of the replacement box.
    """
    index = _font().get_char_index(ord(letter))
    return _font().load_glyph(index).linearHoriAdvance / 65536e3 if index else 1.1


def printable(text: str) -> str:
    """Return a text with `?` for each control character and line break, which figures cannot show."""
    return "".join(letter if is_safe(letter) else "?" for letter in text)
