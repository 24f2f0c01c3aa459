"""Corruptions and the option `--corrupt`. Importing this module loads neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from hydractl.data.reference import IMAGE_SUFFIXES
from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.runtime import digest_files

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
"""Corruptions of ImageNet-C in its order, each with a description (Hendrycks and Dietterich 2019, section
3.2)."""
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "typos": "letters swapped, left out, doubled, or mistaken for a neighbour on a QWERTY keyboard",
        "drop": "words left out",
        "swap": "neighbouring words swapped",
        "case": "letters in the other case",
    }
)
"""Corruptions of texts, each with a description. This project defines these corruptions."""
ALL_CORRUPTIONS = (*IMAGES, *TEXTS)
ALL, SHIFT = "all", "shift"
"""Name of all corruptions in options, and in conditions of `--fail-if`."""
SEVERITIES = (1, 2, 3, 4, 5)


FROST = "frost"
PHOTOGRAPHS = 5
"""Number of frost photographs that the code of ImageNet-C samples from; the folder has six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Photographs:
    """Photographs for the corruption `frost`, which adds crops.

    Attributes:
        files: The first `PHOTOGRAPHS` images of a folder, sorted by name.
        sha256: Digest of the contents, in this order.
    """

    files: tuple[Path, ...]
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Find the photographs of a folder.

        Raises:
            UsageError: If the folder does not exist or has no images.
        """
        paths = (
            sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
            if folder.is_dir()
            else []
        )
        if not paths:
            problem = "has no image" if folder.is_dir() else "is not a folder"
            raise UsageError(
                f"`--corrupt {FROST}={folder}`: {problem}",
                hint=(
                    "give the folder of ImageNet-C's frost1.png to frost6.jpg, or omit `=DIR` to use drawn ice"
                ),
            )
        files = tuple(paths[:PHOTOGRAPHS])
        return cls(files=files, sha256=digest_files(files))


@dataclass(frozen=True, slots=True, order=True)
class Corruption:
    """A corruption at a severity.

    Attributes:
        name: Name of the corruption.
        severity: 1 to 5.
        seed: Seed of the random draws.
        photographs: Photographs of `frost`; None for drawn ice.
    """

    name: str
    severity: int
    seed: int = 0
    photographs: Photographs | None = field(default=None, compare=False)

    def seeded(self, place: int) -> tuple[int, ...]:
        """Return the seed of an item's draws: seed, index of the corruption, severity, and index of the item."""
        return self.seed, ALL_CORRUPTIONS.index(self.name), self.severity, place


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruptions:
    """Value of a `--corrupt` option.

    Attributes:
        name: A name in `ALL_CORRUPTIONS`, or `all` for the model's kind of input.
        severities: Severities in increasing order.
        photographs: Photographs of `frost`; None for drawn ice.
    """

    name: str
    severities: tuple[int, ...] = SEVERITIES
    photographs: Photographs | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `NAME`, `NAME:SEVERITY` or `NAME:FROM-TO`. The name `frost` may be followed by `=FOLDER`.

        Raises:
            UsageError: If the text has another form, or if the folder has no photographs.
        """
        request, equals, folder = text.partition("=")
        if "," in request:
            raise UsageError(
                f"`--corrupt {text}`: takes one corruption",
                hint=f"repeat the option: `--corrupt {' --corrupt '.join(text.split(','))}`",
            )
        name, colon, severity_range = request.partition(":")
        if name not in {*ALL_CORRUPTIONS, ALL}:
            raise UsageError(
                f"`--corrupt {text}`: unknown corruption `{name}`",
                hint=did_you_mean(name, ALL_CORRUPTIONS)
                or f"choose `{ALL}`, or from {', '.join(ALL_CORRUPTIONS)}",
            )
        if equals and name != FROST:
            raise UsageError(
                f"`--corrupt {text}`: only `{FROST}` takes a folder of photographs",
                hint=f"for example `--corrupt {ALL} --corrupt {FROST}={folder or 'photographs/'}`",
            )
        photographs = Photographs.of(Path(folder)) if equals else None
        first, dash, last = severity_range.partition("-")
        ends = [first, last] if dash else [first, first]
        if not colon:
            return cls(name=name, photographs=photographs)
        if not all(end in map(str, SEVERITIES) for end in ends) or ends[0] > ends[1]:
            raise UsageError(
                f"`--corrupt {text}`: severities must be in {SEVERITIES[0]} to {SEVERITIES[-1]}",
                hint=f"for example `{name}:3` or `{name}:1-5`",
            )
        return cls(
            name=name, severities=tuple(range(int(ends[0]), int(ends[1]) + 1)), photographs=photographs
        )

    def __str__(self) -> str:
        with_ = f"={self.photographs.files[0].resolve().parent.name}" if self.photographs else ""
        if self.severities == SEVERITIES:
            return self.name + with_
        first, last = self.severities[0], self.severities[-1]
        return (f"{self.name}:{first}" if first == last else f"{self.name}:{first}-{last}") + with_


def expand_corruptions(
    requests: Iterable[Corruptions], *, texts: bool, seed: int = 0
) -> tuple[Corruption, ...]:
    """Expand values of `--corrupt`, each corruption once.

    Args:
        requests: Values of the option.
        texts: Whether the model reads texts; otherwise images.
        seed: Seed of the random draws.

    Returns:
        Corruptions in the order of `ALL_CORRUPTIONS`, then by severity. Photographs of a request apply to all
        `frost` corruptions.

    Raises:
        UsageError: If a corruption does not apply to the model's inputs, or photographs come from several
            folders.
    """
    applicable = TEXTS if texts else IMAGES
    requests = tuple(requests)
    photographs = tuple(
        dict.fromkeys(request.photographs for request in requests if request.photographs is not None)
    )
    if len(photographs) > 1:
        raise UsageError(
            f"`--corrupt {FROST}` names {len(photographs)} folders", hint="one folder serves all severities"
        )
    adds = {FROST: next(iter(photographs), None)}
    corruptions: set[Corruption] = set()
    for request in requests:
        if request.name not in {*applicable, ALL}:
            raise UsageError(
                f"`--corrupt {request}` is for {'images' if texts else 'texts'}, but the model reads {'texts' if texts else 'images'}",
                hint=f"choose `{ALL}`, or from {', '.join(applicable)}",
            )
        names = applicable if request.name == ALL else (request.name,)
        corruptions |= {
            Corruption(name, severity, seed, adds.get(name))
            for name in names
            for severity in request.severities
        }
    return tuple(sorted(corruptions, key=lambda c: (ALL_CORRUPTIONS.index(c.name), c.severity)))


def scopes(measured: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Return the cells (corruption, severity) of each scope.

    Args:
        measured: Measured cells, in the order of tables.

    Returns:
        Cells by scope: `shift` (all cells), `shift:3` (a severity), `fog` (a corruption) and `fog:3` (a
            cell). Empty without cells.
    """
    cells = [*dict.fromkeys(measured)]
    severities = sorted({severity for _, severity in cells})
    groups = {SHIFT: cells} if cells else {}
    groups |= {f"{SHIFT}:{level}": [cell for cell in cells if cell[1] == level] for level in severities}
    for name in dict.fromkeys(name for name, _ in cells):
        of_corruption = [cell for cell in cells if cell[0] == name]
        groups |= {name: of_corruption} | {
            f"{name}:{severity}": [(name, severity)] for _, severity in of_corruption
        }
    return groups


def scopes_of(measured: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the scopes of corruptions, for example `shift`, `shift:3`, `fog` and `fog:3`; see `scopes`.

    Args:
        measured: Pairs of corruption and severity, for example ("fog", 3).
    """
    return tuple(scopes((name, str(severity)) for name, severity in measured))


class Scopes(NamedTuple):
    """Names of metrics under corruption in reports and conditions.

    Attributes:
        judged: Scope for the verdict of a report.
    """

    judged: str = SHIFT

    def title(self, scope: str) -> str:
        """Return a title for a scope, for example `fog of severity 3`."""
        name, _, severity = scope.partition(":")
        corruption = "corruption" if name == SHIFT else name
        return f"{corruption}{severity and f' of severity {severity}'}"


SCOPES = Scopes()
