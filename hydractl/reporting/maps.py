"""Maps of the heads that a member keeps, layers by heads."""

from __future__ import annotations

from collections.abc import Sequence

from hydractl.errors import shortened
from hydractl.manifest.heads import TowerKeep
from hydractl.progress import counted
from hydractl.reporting.drawing import TEXT, Drawing, Path, Point, Text

CELL, GAP, MAP = 9.0, 1.0, 300.0
"""The side of a head, what parts it from the next, and the most that a map of many takes."""
NARROWEST, MAP_LETTERS = 150.0, 22
"""Two maps fit beside each other on a phone."""


def head_map(name: str, mask: TowerKeep, *, where: str = "") -> Drawing:
    """Return the map of one tower of one member; `where` says of which model, if there are several."""
    wide, high = min(CELL, MAP / mask.num_heads), min(CELL, MAP / mask.layers)
    left, top = 24.0, 58.0 if where else 42.0

    def cells(heads: Sequence[Sequence[int]]) -> list[list[Point]]:
        gap_x, gap_y = GAP * wide / CELL, GAP * high / CELL
        return [
            [(x, y), (x + wide - gap_x, y), (x + wide - gap_x, y + high - gap_y), (x, y + high - gap_y)]
            for layer, own in enumerate(heads)
            for x, y in ((left + wide * head, top + high * layer) for head in own)
        ]

    total = mask.num_heads * mask.layers
    said = f"{total - mask.removed} of {counted(total, 'head')} kept"
    bottom = top + high * mask.layers
    shapes: list[Path | Text] = [
        Text(at=(0, 14), text=shortened(name, MAP_LETTERS)),
        Text(at=(0, 30), text=shortened(where or said, MAP_LETTERS), paint="soft", size=TEXT - 1),
        Path(parts=cells(mask.drop), fill="rule"),
        Path(parts=cells(mask.keep), fill="c0", title=f"{name}: {said}"),
        Text(at=(left - 5, top + high * 0.8), text="0", anchor="end", paint="soft", size=TEXT - 2),
    ]
    if where:
        shapes.append(Text(at=(0, 46), text=said, paint="soft", size=TEXT - 1))
    if mask.layers > 1:
        last = str(mask.layers - 1)
        shapes.append(
            Text(at=(left - 5, bottom - high * 0.2), text=last, anchor="end", paint="soft", size=TEXT - 2)
        )
    each = ", ".join(f"layer {i}: {len(keep)}" for i, keep in enumerate(mask.keep))
    width = max(NARROWEST, left + wide * mask.num_heads + 12)
    return Drawing(
        title=f"{where}: {name}" if where else name,
        told=f"{said}; {each}",
        width=width,
        height=bottom + 14,
        shapes=shapes,
    )
