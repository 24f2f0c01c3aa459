"""Maps of the heads that a member keeps, layers by heads."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from hydractl.manifest.head_mask import TowerKeep
from hydractl.messages import counted
from hydractl.reporting.svg import TEXT, Drawing, Point, SvgPath, SvgText, fitting

CELL, GAP, MAP = 9.0, 1.0, 300.0
"""The side of a head, what parts it from the next, and the most that a map of many takes."""
NARROWEST, ROOM = 150.0, 6.0
"""Two maps fit beside each other on a phone."""
SHADES, PALE = 12, 1
"""Steps of darkness, of which the palest can still be seen."""


def head_map(name: str, mask: TowerKeep, *, where: str = "") -> Drawing:
    """Return the map of one tower of one member; `where` says of which model, if there are several."""
    wide, high = min(CELL, MAP / mask.num_heads), min(CELL, MAP / mask.layers)
    left, top = 24.0, 58.0 if where else 42.0
    width = max(NARROWEST, left + wide * mask.num_heads + 12)

    def cells(heads: Sequence[Sequence[int]]) -> list[list[Point]]:
        gap_x, gap_y = GAP * wide / CELL, GAP * high / CELL
        return [
            [(x, y), (x + wide - gap_x, y), (x + wide - gap_x, y + high - gap_y), (x, y + high - gap_y)]
            for layer, head_numbers in enumerate(heads)
            for x, y in ((left + wide * head, top + high * layer) for head in head_numbers)
        ]

    total = mask.num_heads * mask.layers
    summary = f"{total - mask.removed} of {counted(total, 'head')} kept"
    bottom = top + high * mask.layers
    shapes: list[SvgPath | SvgText] = [
        SvgText(at=(0, 14), text=fitting(name, width - ROOM)),
        SvgText(
            at=(0, 30), text=fitting(where or summary, width - ROOM, TEXT - 1), paint="soft", size=TEXT - 1
        ),
        SvgPath(parts=cells(mask.drop), fill="rule"),
        SvgPath(parts=cells(mask.keep), fill="c0", title=f"{name}: {summary}"),
        SvgText(at=(left - 5, top + high * 0.8), text="0", anchor="end", paint="soft", size=TEXT - 2),
    ]
    if where:
        shapes.append(SvgText(at=(0, 46), text=summary, paint="soft", size=TEXT - 1))
    if mask.layers > 1:
        last = str(mask.layers - 1)
        shapes.append(
            SvgText(at=(left - 5, bottom - high * 0.2), text=last, anchor="end", paint="soft", size=TEXT - 2)
        )
    kept_by_layer = ", ".join(f"layer {i}: {len(keep)}" for i, keep in enumerate(mask.keep))
    return Drawing(
        title=f"{where}: {name}" if where else name,
        description=f"{summary}; {kept_by_layer}",
        width=width,
        height=bottom + 14,
        shapes=shapes,
    )


def value_map(name: str, table: Sequence[Sequence[float | None]], *, most: float, where: str = "") -> Drawing:
    """Return a map of a number of each head: the darker the nearer to `most`, which is above 0; heads that are gone are outlined."""
    layers, heads = len(table), len(table[0])
    wide, high = min(CELL, MAP / heads), min(CELL, MAP / layers)
    left, top = 24.0, 58.0
    width = max(NARROWEST, left + wide * heads + 12)
    shades: dict[int, list[list[Point]]] = {}
    removed_cells: list[list[Point]] = []
    for layer, row in enumerate(table):
        for head, value in enumerate(row):
            x, y = left + wide * head, top + high * layer
            cell = [(x, y), (x + 0.9 * wide, y), (x + 0.9 * wide, y + 0.9 * high), (x, y + 0.9 * high)]
            cells_of_shade = (
                removed_cells
                if value is None
                else shades.setdefault(ceil(SHADES * min(value / most, 1.0)), [])
            )
            cells_of_shade.append(cell)
    defined_values = [value for row in table for value in row if value is not None]
    summary = (
        f"from {min(defined_values):.2g} to {max(defined_values):.2g}"
        if defined_values
        else "no head is left"
    )
    shapes: list[SvgPath | SvgText] = [
        SvgText(at=(0, 14), text=fitting(name, width - ROOM)),
        SvgText(at=(0, 30), text=fitting(where, width - ROOM, TEXT - 1), paint="soft", size=TEXT - 1),
        SvgText(at=(0, 46), text=summary, paint="soft", size=TEXT - 1),
        SvgPath(parts=[[*cell, cell[0]] for cell in removed_cells], stroke="rule", width=0.75),
        *(
            SvgPath(parts=cells, fill="c0", opacity=max(shade, PALE) / SHADES)
            for shade, cells in sorted(shades.items())
        ),
        SvgText(at=(left - 5, top + high * 0.8), text="0", anchor="end", paint="soft", size=TEXT - 2),
    ]
    bottom = top + high * layers
    if layers > 1:
        shapes.append(
            SvgText(
                at=(left - 5, bottom - high * 0.2),
                text=str(layers - 1),
                anchor="end",
                paint="soft",
                size=TEXT - 2,
            )
        )
    layer_texts = "; ".join(
        f"layer {i}: " + ", ".join("gone" if value is None else f"{value:.2g}" for value in row)
        for i, row in enumerate(table)
    )
    title = f"{where}: {name}" if where else name
    return Drawing(
        title=title, description=f"{summary}; {layer_texts}", width=width, height=bottom + 14, shapes=shapes
    )
