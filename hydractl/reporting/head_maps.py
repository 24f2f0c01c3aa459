"""Maps of a number or a selection of heads, with layers as rows and heads as columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from hydractl.manifest.head_mask import TowerKeep
from hydractl.messages import counted
from hydractl.reporting.chart import Figure
from hydractl.reporting.matplotlib_figure import SMALL, TEXT, Canvas, Panel, fitting

CELL, MAP = 9.0, 275.0
"""Side of a cell and maximum side of a map, in points. Chosen by hand; twice the values give maps wider than
a phone."""
INSIDE = 0.9
"""Filled fraction of a cell's side; the rest is the gap between cells. Chosen by hand; the maximum is 1."""
LEFT = 30.0
"""Space for layer numbers and the word `layer`, in points."""
NARROWEST, ROOM = 150.0, 6.0
"""Minimum width of a map, so that two maps fit next to each other on a phone, and the space right of its
texts, in points. Twice the width allows only one map per line."""
SHADES = 12
"""Number of steps of darkness. Each step is one SVG path, and the palest step is still visible. Chosen by
hand; twice the number doubles the number of paths."""


class Shade(NamedTuple):
    """Heads with the same look.

    Attributes:
        cells: (layer, head) of each head.
        colour: Name of a colour in `PAINTS`.
        opacity: In [0, 1]; cells with opacity 0 are outlined.
    """

    cells: Sequence[tuple[int, int]]
    colour: str
    opacity: float = 1.0


def head_map(name: str, mask: TowerKeep, *, place: str = "") -> Panel:
    """Return a map of a tower's remaining heads.

    Args:
        name: Name of the member.
        mask: Remaining heads.
        place: Name of the model, if the figure has several models.
    """
    total = mask.num_heads * mask.layers
    summary = f"{total - mask.removed} of {counted(total, 'head')} kept"
    kept_by_layer = ", ".join(f"layer {i}: {len(keep)}" for i, keep in enumerate(mask.keep))
    drop, keep = (
        [(layer, head) for layer, heads in enumerate(table) for head in heads]
        for table in (mask.drop, mask.keep)
    )
    return _map(
        (name, place, summary) if place else (name, summary),
        (mask.layers, mask.num_heads),
        (Shade(drop, "rule"), Shade(keep, "c0")),
        title=f"{place}: {name}" if place else name,
        description=f"{summary}; {kept_by_layer}",
    )


def value_map(name: str, table: Sequence[Sequence[float | None]], *, most: float, place: str = "") -> Panel:
    """Return a map of a number per head.

    Args:
        name: Name of the member.
        table: Value of each head, by layer. `None` for removed heads, which are outlined.
        most: Value of the darkest cells, above 0.
        place: Name of the model, if the figure has several models.
    """
    cells: dict[int, list[tuple[int, int]]] = {}
    for layer, row in enumerate(table):
        for head, value in enumerate(row):
            shade = 0 if value is None else max(1, ceil(SHADES * min(value / most, 1.0)))
            cells.setdefault(shade, []).append((layer, head))
    numbers = [value for row in table for value in row if value is not None]
    summary = f"from {min(numbers):.2g} to {max(numbers):.2g}" if numbers else "no head is left"
    layer_texts = "; ".join(
        f"layer {i}: " + ", ".join("gone" if value is None else f"{value:.2g}" for value in row)
        for i, row in enumerate(table)
    )
    return _map(
        (name, place, summary),
        (len(table), len(table[0])),
        [Shade(cells[shade], "c0" if shade else "rule", shade / SHADES) for shade in sorted(cells)],
        title=f"{place}: {name}" if place else name,
        description=f"{summary}; {layer_texts}",
    )


def heads_figure(maps: Sequence[Panel]) -> Figure | None:
    """Return a figure of maps, or `None` without maps."""
    return Figure.unless_empty(
        "heads",
        "Heads",
        "Which attention heads each member keeps (dark), layer by layer from the top.",
        maps,
    )


def _map(
    lines: Sequence[str], shape: tuple[int, int], shades: Sequence[Shade], *, title: str, description: str
) -> Panel:
    """Return a map of (layers, heads) below lines of text."""
    layers, heads = shape
    wide, high = min(CELL, MAP / heads), min(CELL, MAP / layers)
    top = 18.0 + 16 * len(lines)
    bottom = top + high * layers
    width = max(NARROWEST, LEFT + wide * heads + 12)

    def draw(canvas: Canvas) -> None:
        for i, text in enumerate(lines):
            size, colour = (SMALL, "soft") if i else (TEXT, "ink")
            canvas.write(0, 14 + 16 * i, fitting(text, width - ROOM, size), size=size, colour=colour)
        for layer, y in {0: top + 0.8 * high, layers - 1: bottom - 0.2 * high}.items():
            canvas.write(LEFT - 5, y, str(layer), anchor="right", size=SMALL - 1, colour="soft")
        canvas.write(LEFT - 5, top - 3, "layer", anchor="right", size=SMALL - 1, colour="soft")
        canvas.write(LEFT, bottom + SMALL, "head", size=SMALL - 1, colour="soft")
        for cells, colour, opacity in shades:
            corners = [(LEFT + wide * head, top + high * layer) for layer, head in cells]
            canvas.rectangles(
                corners,
                (INSIDE * wide, INSIDE * high),
                colour,
                tooltip=f"{title}: {lines[-1]}",
                opacity=opacity,
            )

    return Panel(title=title, description=description, width=width, height=bottom + 20, draw=draw)
