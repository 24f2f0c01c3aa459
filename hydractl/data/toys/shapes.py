"""Images that need no download and have names: coloured shapes, small and noisy, each a function of its place alone.

A class is a colour and a shape, `red circle`. Of all pairs, twelve never occur in training: `domain=novel`. Every image has one shape
of its class; smaller marks of other colours lie about, a bar may cover a part, and colours and pixels are noisy, so that nothing
reads all of them right.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from PIL import Image, ImageDraw
from typing_extensions import override

from hydractl.data.datasets import ImageSet, ImageStore
from hydractl.data.reference import DataRef
from hydractl.data.toys.builtin import SPLITS
from hydractl.errors import DataError

Point = tuple[float, float]
Colour = tuple[int, int, int]

SIZE = 24
COUNTS: Mapping[str, int] = MappingProxyType(dict(zip(SPLITS, (9600, 720, 960), strict=True)))
"""Number of images of known shapes per split."""
NOVEL_COUNT = 720
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
KNOWN_DOMAIN, NOVEL_DOMAIN = "known", "novel"


def _pairs(*, novel: bool) -> tuple[str, ...]:
    """Return class names; each colour and each shape lacks two partners, which are novel."""
    steps = range(2) if novel else range(2, len(SHAPES))
    return tuple(
        f"{colour} {SHAPES[(place + step) % len(SHAPES)]}"
        for step in steps
        for place, colour in enumerate(COLOURS)
    )


DOMAINS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {KNOWN_DOMAIN: _pairs(novel=False), NOVEL_DOMAIN: _pairs(novel=True)}
)


@dataclass(frozen=True, slots=True)
class ShapeStore(ImageStore):
    """Images that are drawn, mode `RGB`: of each its class and its seed."""

    class_and_seed: tuple[tuple[str, str], ...]

    @override
    def image(self, index: int) -> Image.Image:
        label, seed = self.class_and_seed[index]
        return draw(label, seed=seed)


def open_shapes(ref: DataRef) -> ImageSet:
    """Return the shapes of a domain class after class, the known ones with their splits.

    Raises:
        DataError: If there is no such domain or split.
    """
    domain = ref.domain or KNOWN_DOMAIN
    if domain not in DOMAINS:
        raise DataError(f"`shapes` has no domain `{domain}`; it has {', '.join(DOMAINS)}")
    if ref.split is not None and (domain != KNOWN_DOMAIN or ref.split not in COUNTS):
        raise DataError(
            f"`shapes` of the domain {domain} has no split `{ref.split}`",
            hint=f"the known ones have {', '.join(COUNTS)}; the novel ones have none",
        )
    names = DOMAINS[domain]
    counts = COUNTS if domain == KNOWN_DOMAIN else {"": NOVEL_COUNT}
    chosen = [ref.split] if ref.split else list(counts)
    class_and_seed = [
        (label, f"{split}-{place}")
        for label in names
        for split in chosen
        for place in range(counts[split] // len(names))
    ]
    return ImageSet(
        store=ShapeStore(tuple(class_and_seed)),
        places=range(len(class_and_seed)),
        name="shapes",
        class_names=names,
        labels=tuple(names.index(label) for label, _ in class_and_seed),
    )


@lru_cache(maxsize=8192)
def draw(label: str, *, seed: str) -> Image.Image:
    """Return a 24 x 24 image of `COLOUR SHAPE`, a function of the arguments alone."""
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
    """Draw a small dot or line in one of the colours."""
    names = tuple(COLOURS)
    fill = _tinted(chance, COLOURS[names[int(len(names) * chance.random())]], 40)
    x, y = _between(chance, 0, SIZE), _between(chance, 0, SIZE)
    if chance.random() < 0.5:
        r = _between(chance, 1, 2.2)
        brush.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    else:
        brush.line((x, y, _between(chance, 0, SIZE), _between(chance, 0, SIZE)), fill=fill, width=1)


def _bar(chance: random.Random, brush: ImageDraw.ImageDraw, centre: Point) -> None:
    """Cover a part of the shape."""
    (x, y), angle = centre, _between(chance, 0, math.pi)
    dx, dy = SIZE * math.cos(angle), SIZE * math.sin(angle)
    width = 2 + int(2 * chance.random())
    brush.line((x - dx, y - dy, x + dx, y + dy), fill=_tinted(chance, GROUND, 45), width=width)


def _noisy(image: Image.Image, *, seed: str, spread: float) -> Image.Image:
    """Add uniform noise of at most `spread` to every value."""
    words = np.random.PCG64([*seed.encode()]).random_raw(SIZE * SIZE * 3 // 8)
    noise = np.asarray(words, dtype="<u8").view(np.uint8).reshape(SIZE, SIZE, 3) / 127.5 - 1
    values = np.asarray(image, dtype=np.float64) + noise * spread
    return Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))


def _tinted(chance: random.Random, colour: Colour, by: float) -> Colour:
    """Return a colour with each of its parts moved by at most `by`."""
    red, green, blue = (round(min(255, max(0, part + _between(chance, -by, by)))) for part in colour)
    return red, green, blue


def _between(chance: random.Random, low: float, high: float) -> float:
    """Return a number in low..high; `Random.uniform` may draw otherwise in another Python."""
    return low + (high - low) * chance.random()
