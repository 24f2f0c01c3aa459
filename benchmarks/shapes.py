"""Drawn images of coloured shapes with noise, as folders with one sub-folder per class.

A class is a colour and a shape, `red circle`. Twelve of the 36 pairs are novel and never occur in training.
Each image shows the shape of its class, one or two marks in random colours, sometimes a bar over a part of
the shape, and noise. Therefore no model answers all images correctly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from PIL import Image, ImageDraw

Point = tuple[float, float]
Colour = tuple[int, int, int]

SIZE = 24
COLOURS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": (205, 45, 50), "orange": (225, 130, 40), "yellow": (215, 200, 60), "green": (60, 160, 70),
        "blue": (55, 90, 200), "purple": (145, 65, 170),
    }
)  # fmt: skip
GROUND = (110, 110, 110)
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
TILT = math.pi / 9
"""Maximum rotation of a shape, in radians."""


def _pairs(*steps: int) -> tuple[str, ...]:
    """Return a class per colour and step. With each step, every colour gets another shape."""
    return tuple(
        f"{colour} {SHAPES[(place + step) % len(SHAPES)]}"
        for step in steps
        for place, colour in enumerate(COLOURS)
    )


KNOWN = _pairs(2, 3, 4, 5)
"""Known classes. Each quarter has every colour and every shape once."""
SETS: Mapping[str, tuple[tuple[str, ...], int]] = MappingProxyType(
    {
        "train": (KNOWN, 400),
        "val": (KNOWN, 30),
        "test": (KNOWN, 40),
        "near-val": (_pairs(0), 60),
        "near": (_pairs(1), 60),
    }
)
"""Classes, and images per class, of each set. The last two have the novel pairs."""


def write_shapes(out: Path) -> Path:
    """Write all sets as folders of PNG files if `out` is missing. Return `out`."""
    if not out.exists():
        part = out.with_name(f"{out.name}.part")
        for name, (classes, count) in SETS.items():
            split = name if classes is KNOWN else ""
            for label in classes:
                folder = part / name / label
                folder.mkdir(parents=True, exist_ok=True)
                for place in range(count):
                    draw(label, seed=f"{split}-{place}").save(folder / f"{place:03}.png")
        part.rename(out)
    return out


def draw(label: str, *, seed: str) -> Image.Image:
    """Return a 24 x 24 image of `COLOUR SHAPE`, determined by the arguments."""
    colour, _, shape = label.partition(" ")
    chance = random.Random(f"shape-{label}-{seed}")  # noqa: S311 - reproducible, not secret
    image = Image.new("RGB", (SIZE, SIZE), _tinted(chance, GROUND, 45))
    brush = ImageDraw.Draw(image)
    for _ in range(1 + int(2 * chance.random())):
        _mark(chance, brush)
    radius = _between(chance, 6.0, 10.5)
    centre = (_between(chance, radius, SIZE - radius), _between(chance, radius, SIZE - radius))
    _shape(
        brush,
        shape,
        centre,
        radius,
        angle=_between(chance, -TILT, TILT),
        fill=_tinted(chance, COLOURS[colour], 35),
    )
    if chance.random() < 0.25:
        x, y = centre
        _bar(chance, brush, (x + _between(chance, -radius, radius), y + _between(chance, -radius, radius)))
    return _noisy(image, seed=f"{label}-{seed}", spread=_between(chance, 4, 20))


def _shape(
    brush: ImageDraw.ImageDraw, shape: str, centre: Point, radius: float, *, angle: float, fill: Colour
) -> None:
    x, y = centre
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "circle":
            brush.ellipse(box, fill=fill)
        case "ring":
            brush.ellipse(box, outline=fill, width=max(2, round(radius / 3)))
        case "square":
            brush.polygon(_corners(centre, [radius] * 4, angle + math.pi / 4), fill=fill)
        case "triangle":
            brush.polygon(_corners(centre, [radius] * 3, angle - math.pi / 2), fill=fill)
        case "star":
            brush.polygon(_corners(centre, [radius, radius * 0.42] * 5, angle - math.pi / 2), fill=fill)
        case "cross":
            for turn in (0, math.pi / 2):
                dx, dy = radius * math.cos(angle + turn), radius * math.sin(angle + turn)
                brush.line((x - dx, y - dy, x + dx, y + dy), fill=fill, width=max(2, round(radius / 2)))
        case _:
            raise ValueError(shape)


def _corners(centre: Point, radii: Sequence[float], angle: float) -> list[Point]:
    turn = math.tau / len(radii)
    return [
        (centre[0] + r * math.cos(angle + i * turn), centre[1] + r * math.sin(angle + i * turn))
        for i, r in enumerate(radii)
    ]


def _mark(chance: random.Random, brush: ImageDraw.ImageDraw) -> None:
    """Draw a small dot or line in a random colour."""
    names = tuple(COLOURS)
    fill = _tinted(chance, COLOURS[names[int(len(names) * chance.random())]], 40)
    x, y = _between(chance, 0, SIZE), _between(chance, 0, SIZE)
    if chance.random() < 0.5:
        r = _between(chance, 1, 2.2)
        brush.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    else:
        brush.line((x, y, _between(chance, 0, SIZE), _between(chance, 0, SIZE)), fill=fill, width=1)


def _bar(chance: random.Random, brush: ImageDraw.ImageDraw, centre: Point) -> None:
    """Draw a bar in the colour of the background over a part of the shape."""
    (x, y), angle = centre, _between(chance, 0, math.pi)
    dx, dy = SIZE * math.cos(angle), SIZE * math.sin(angle)
    width = 2 + int(2 * chance.random())
    brush.line((x - dx, y - dy, x + dx, y + dy), fill=_tinted(chance, GROUND, 45), width=width)


def _noisy(image: Image.Image, *, seed: str, spread: float) -> Image.Image:
    """Return an RGB image with uniform noise in [-spread, spread] added to each value in 0..255.

    Values are rounded and clipped. The noise depends only on `seed`. The image has `SIZE` x `SIZE` pixels.
    """
    words = np.random.PCG64([*seed.encode()]).random_raw(SIZE * SIZE * 3 // 8)
    noise = np.asarray(words, dtype="<u8").view(np.uint8).reshape(SIZE, SIZE, 3) / 127.5 - 1
    values = np.asarray(image, dtype=np.float64) + noise * spread
    return Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))


def _tinted(chance: random.Random, colour: Colour, by: float) -> Colour:
    """Return a colour with each component changed by at most `by`."""
    red, green, blue = (round(min(255, max(0, part + _between(chance, -by, by)))) for part in colour)
    return red, green, blue


def _between(chance: random.Random, low: float, high: float) -> float:
    """Return a uniform number in low..high. `Random.uniform` may change between versions of Python."""
    return low + (high - low) * chance.random()
