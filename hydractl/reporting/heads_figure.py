"""A figure of choices of heads: layers by heads for each, and how many heads each removes from every layer.

Names of files are short in it, literal, and never wider than their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import shortened
from hydractl.reporting.matplotlib_figure import FORMATS, picture, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

    from hydractl.manifest.head_mask import Mask, TowerKeep

MOST_PANELS = 40
PER_ROW = 5
NAME_POINTS, NAME_LINES = 7, 4
MONOSPACE_EMS = 0.61  # the advance of DejaVu Sans Mono, which matplotlib brings along
KEPT_COLOUR, REMOVED_COLOUR = "#666666", "#ececec"

# inches
EDGE, GUTTER, MAP_WIDTH, BARS_HEIGHT = 0.1, 0.5, 1.45, 1.1
AXIS, HEADING, LINE = 0.45, 0.25, 0.135
NARROWEST = 3.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One choice of heads.

    Attributes:
        name: What to call it, of any length.
        mask: Which heads stay.
    """

    name: str
    mask: Mask


def draw_heads(panels: Sequence[Panel], *, suffix: str) -> bytes:
    """Draw one map a choice and tower, and below them bars of the heads removed from each layer.

    Removed heads are crossed out. Equal panels give equal bytes: the
    user's matplotlib settings play no part, and the file holds no date.

    Args:
        panels: From one to `MOST_PANELS`, all of one shape.
        suffix: One of `FORMATS`.

    Returns:
        The file.

    Raises:
        ValueError: If there are no panels or too many, or the format is unknown.
        UsageError: If the environment names a backend that matplotlib does not know.
    """
    if not 1 <= len(panels) <= MOST_PANELS or suffix not in FORMATS:
        raise ValueError(
            f"expected up to {MOST_PANELS} panels, one of {FORMATS}; got {len(panels)}, {suffix!r}"
        )

    return picture(lambda figure: _fill(figure, panels), suffix=suffix)


class _Sheet:
    """A figure that is filled from top to bottom, in inches.

    matplotlib's own layouts are solved for at run time, with results that differ in their last bits.
    """

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.width, self.height = figure.get_size_inches()
        self.top = EDGE

    def axes(self, x: float, width: float, height: float) -> Axes:
        """Return axes that begin at the current height."""
        bottom = self.height - self.top - height
        return self.figure.add_axes(
            (x / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def write(self, x: float, text: str, **style: object) -> None:
        """Write literal lines downwards from the current height."""
        place = (x / self.width, 1 - self.top / self.height)
        self.figure.text(*place, text, va="top", parse_math=False, **style)  # type: ignore[arg-type]

    def legend(self, handles: Sequence[object], labels: Sequence[str], **style: object) -> Legend:
        """Explain colours and signs, from the current height downwards."""
        place = (EDGE / self.width, 1 - self.top / self.height)
        return self.figure.legend(
            handles=handles, labels=labels, loc="upper left", bbox_to_anchor=place,
            borderaxespad=0, borderpad=0, frameon=False, handlelength=1.2, **style,
        )  # fmt: skip


def _rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    return [panels[i : i + PER_ROW] for i in range(0, len(panels), PER_ROW)]


def _names(panels: Sequence[Panel]) -> list[str]:
    letters = int(MAP_WIDTH * 72 / (NAME_POINTS * MONOSPACE_EMS))
    return [wrapped(panel.name, letters, lines=NAME_LINES) for panel in panels]


def _names_height(row: Sequence[Panel]) -> float:
    return LINE * max(len(name.splitlines()) for name in _names(row)) + 0.05


def _map_height(tower: TowerKeep) -> float:
    """Return the height that makes cells square, within reason."""
    return min(max(MAP_WIDTH * tower.layers / tower.num_heads, 0.5), 5.0)


def _inches(panels: Sequence[Panel]) -> tuple[float, float]:
    towers = panels[0].mask
    height = EDGE + HEADING + (LINE + 0.02) * len(panels) * (len(panels) > 1) + EDGE
    for tower in towers.values():
        height += HEADING * (len(towers) > 1) + BARS_HEIGHT + AXIS
        height += sum(_names_height(row) + _map_height(tower) + AXIS for row in _rows(panels))
    return max(NARROWEST, (GUTTER + MAP_WIDTH) * min(len(panels), PER_ROW) + EDGE), height


def _fill(figure: Figure, panels: Sequence[Panel]) -> None:
    figure.set_size_inches(_inches(panels))
    sheet = _Sheet(figure)
    towers, colours = panels[0].mask, _colours(len(panels))
    for name, tower in towers.items():
        if len(towers) > 1:
            sheet.write(GUTTER, f"tower {printable(name)}", fontweight="bold", fontsize=9)
            sheet.top += HEADING
        for row in _rows(panels):
            _fill_row(sheet, name, tower, row)
        _bars(sheet.axes(GUTTER, sheet.width - GUTTER - EDGE, BARS_HEIGHT), name, panels, colours)
        sheet.top += BARS_HEIGHT + AXIS
    _legends(sheet, panels, colours)


def _fill_row(sheet: _Sheet, name: str, tower: TowerKeep, row: Sequence[Panel]) -> None:
    lefts = [GUTTER + i * (GUTTER + MAP_WIDTH) for i in range(len(row))]
    for x, text in zip(lefts, _names(row), strict=True):
        sheet.write(x, text, fontsize=NAME_POINTS, family="DejaVu Sans Mono")
    sheet.top += _names_height(row)
    for x, panel in zip(lefts, row, strict=True):
        axes = sheet.axes(x, MAP_WIDTH, _map_height(tower))
        _map(axes, name, panel)
        axes.set_xlabel("head")
        if panel is row[0]:
            axes.set_ylabel("layer")
    sheet.top += _map_height(tower) + AXIS


def _map(axes: Axes, tower: str, panel: Panel) -> None:
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - as above
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    mask = panel.mask[tower]
    kept_cells = [[float(head in heads) for head in range(mask.num_heads)] for heads in mask.keep]
    axes.imshow(kept_cells, cmap=ListedColormap([REMOVED_COLOUR, KEPT_COLOUR]), vmin=0, vmax=1, aspect="auto")
    if mask.removed:
        layers, heads = zip(*((layer, h) for layer, drop in enumerate(mask.drop) for h in drop), strict=True)
        side = 72 * min(MAP_WIDTH / mask.num_heads, _map_height(mask) / mask.layers)
        size = max(0.5, min(5.0, 0.55 * side)) ** 2
        for colour, width in (("white", 1.6), ("black", 0.7)):  # to be seen on any colour
            axes.scatter(heads, layers, marker="x", s=size, c=colour, linewidths=width)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(-0.5, mask.num_heads - 0.5)
    axes.set_ylim(mask.layers - 0.5, -0.5)
    axes.tick_params(length=2)


def _bars(axes: Axes, tower: str, panels: Sequence[Panel], colours: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    layers, width = panels[0].mask[tower].layers, 0.8 / len(panels)
    for i, (panel, colour) in enumerate(zip(panels, colours, strict=True)):
        places = [layer - 0.4 + (i + 0.5) * width for layer in range(layers)]
        axes.bar(places, [len(heads) for heads in panel.mask[tower].drop], width=width, color=colour)
    axes.set_xlim(-0.6, layers - 0.4)
    axes.set_ylim(0, panels[0].mask[tower].num_heads)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("layer")
    axes.set_ylabel("heads removed")
    axes.spines[["top", "right"]].set_visible(False)


def _legends(sheet: _Sheet, panels: Sequence[Panel], colours: Sequence[str]) -> None:
    """Say what cells mean, and which bars are whose."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - as above

    removed = Line2D([], [], marker="x", color="black", linestyle="", markersize=5)
    cells: dict[str, object] = {"kept": Patch(color=KEPT_COLOUR), "removed": removed}
    sheet.legend(list(cells.values()), list(cells), ncols=len(cells), fontsize=7, columnspacing=1.0)
    sheet.top += HEADING
    if len(panels) > 1:
        letters = int((sheet.width - 0.5) * 72 / (NAME_POINTS * MONOSPACE_EMS))
        legend = sheet.legend(
            [Patch(color=colour) for colour in colours],
            [shortened(printable(panel.name), letters) for panel in panels],
            labelspacing=0.2,
            prop={"family": "DejaVu Sans Mono", "size": NAME_POINTS},
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _colours(count: int) -> list[str]:
    """Return colours that can be told apart, also by colour-blind eyes up to seven (Okabe and Ito 2008)."""
    from matplotlib import colormaps  # noqa: PLC0415 - as above
    from matplotlib.colors import to_hex  # noqa: PLC0415 - as above

    named = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000"]
    if count <= len(named):
        return named[:count]
    return [to_hex(colormaps["turbo"](i / (count - 1))) for i in range(count)]


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the leading folders that are not needed to tell them apart; equal names stay equal."""
    return tuple(
        _distinct_name(name, {other_name for other_name in names if other_name != name}) for name in names
    )


def _distinct_name(name: str, others: set[str]) -> str:
    for begin in range(name.count("/"), 0, -1):
        short = "/".join(name.split("/")[begin:])
        if short and not any(f"/{other_name}".endswith(f"/{short}") for other_name in others):
            return short
    return name


def wrapped(name: str, letters: int, *, lines: int) -> str:
    """Return a name in at most `lines` lines of at most `letters` letters, without its middle where it is longer."""
    text = shortened(printable(name), letters * lines)
    return "\n".join(text[i : i + letters] for i in range(0, len(text), letters))
