"""Which corruptions there are, and what `--corrupt` says. Importing this loads neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from hydractl.errors import UsageError
from hydractl.progress import did_you_mean

IMAGES: Mapping[str, str] = MappingProxyType(
    {
        "gaussian-noise": "normal noise on every value",
        "shot-noise": "Poisson noise, as of few photons",
        "impulse-noise": "values that are black or white",
        "defocus-blur": "a disk for each point",
        "glass-blur": "points that take a neighbour's colour",
        "motion-blur": "a line for each point",
        "zoom-blur": "the mean of enlargements",
        "snow": "flakes in motion over a paler image",
        "frost": "crystals of ice over a darker image",
        "fog": "a cloud, the heights of a fractal",
        "brightness": "a higher value of HSV",
        "contrast": "nearer to the mean colour",
        "elastic": "a small affine map, and a stretch that differs from place to place",
        "pixelate": "fewer, larger pixels",
        "jpeg": "compressed by JPEG",
    }
)
"""ImageNet-C's (Hendrycks and Dietterich 2019, section 3.2), in its order."""
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "typos": "letters swapped, left out, doubled, or mistaken for a neighbour on a QWERTY keyboard",
        "drop": "words left out",
        "swap": "neighbouring words swapped",
        "case": "letters in the other case",
    }
)
"""Ours."""
KNOWN = (*IMAGES, *TEXTS)
ALL = "all"
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True, order=True)
class Corruption:
    """One of `KNOWN`, at one of `SEVERITIES`; what is random hangs on it, on the seed and on an item's place in its data set."""

    name: str
    severity: int
    seed: int = 0

    def seeded(self, place: int) -> tuple[int, ...]:
        """Return what an item's draws hang on."""
        return self.seed, KNOWN.index(self.name), self.severity, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruptions:
    """What one `--corrupt` says.

    Attributes:
        name: One of `KNOWN`, or `all` of those that are for what the model reads.
        severities: Which, ascending.
    """

    name: str
    severities: tuple[int, ...] = SEVERITIES

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME`, `NAME:SEVERITY` or `NAME:FROM-TO`.

        Raises:
            UsageError: If it is anything else.
        """
        if "," in text:
            raise UsageError(
                f"`--corrupt {text}`: is about one corruption",
                hint=f"give each an option: `--corrupt {' --corrupt '.join(text.split(','))}`",
            )
        name, colon, rest = text.partition(":")
        if name not in {*KNOWN, ALL}:
            raise UsageError(
                f"`--corrupt {text}`: unknown corruption `{name}`",
                hint=did_you_mean(name, KNOWN) or f"choose `{ALL}`, or from {', '.join(KNOWN)}",
            )
        first, dash, last = rest.partition("-")
        ends = [first, last] if dash else [first, first]
        if not colon:
            return cls(name=name)
        if not all(end in map(str, SEVERITIES) for end in ends) or ends[0] > ends[1]:
            raise UsageError(
                f"`--corrupt {text}`: severities are {SEVERITIES[0]} to {SEVERITIES[-1]}",
                hint=f"for example `{name}:3` or `{name}:1-5`",
            )
        return cls(name=name, severities=tuple(range(int(ends[0]), int(ends[1]) + 1)))

    def __str__(self) -> str:
        if self.severities == SEVERITIES:
            return self.name
        first, last = self.severities[0], self.severities[-1]
        return f"{self.name}:{first}" if first == last else f"{self.name}:{first}-{last}"


def chosen(asked: Iterable[Corruptions], *, texts: bool, seed: int = 0) -> tuple[Corruption, ...]:
    """Return what is asked for, each once, in the order of `KNOWN` and then of severity.

    Args:
        asked: As the options say.
        texts: Whether the model reads texts; else it reads images.
        seed: Of what is random.

    Raises:
        UsageError: If one is not for what the model reads.
    """
    own = TEXTS if texts else IMAGES
    found: set[Corruption] = set()
    for each in asked:
        if each.name not in {*own, ALL}:
            raise UsageError(
                f"`--corrupt {each}` is for {'images' if texts else 'texts'}, but the model reads {'texts' if texts else 'images'}",
                hint=f"choose `{ALL}`, or from {', '.join(own)}",
            )
        names = own if each.name == ALL else (each.name,)
        found |= {Corruption(name, severity, seed) for name in names for severity in each.severities}
    return tuple(sorted(found, key=lambda c: (KNOWN.index(c.name), c.severity)))
