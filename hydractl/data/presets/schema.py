"""What is known of a data set by its name. Importing it loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEAR, FAR, OOD_VAL = "near", "far", "ood-val"
ROLES = (NEAR, FAR, OOD_VAL)
"""Roles of a data set for another one: near OOD, far OOD, and OOD validation data."""
TEST = "test"
NOT_STATED, UNKNOWN = "not stated", "unknown"
"""Licences that a card on the Hub does not state."""


@dataclass(frozen=True, slots=True)
class PresetPart:
    """A part of a data set on the Hub: its `split=` there, and how many samples it has."""

    split: str
    samples: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Images that a list of OpenOOD 1.5 names, by paths from one of its folders.

    Attributes:
        file: The list's.
        images: That folder.
        samples: How many it names, where that is known.
    """

    file: str
    images: str
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A data set that is out-of-distribution to another.

    Attributes:
        name: What tables call it.
        role: One of `ROLES`.
        preset: Which one has exactly its samples; None where the Hub has none that is known to.
        part: Which part of that.
        listed: Where OpenOOD lists it.
    """

    name: str
    role: str
    preset: str | None = None
    part: str = TEST
    listed: Listed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A data set.

    Attributes:
        name: As it is typed.
        content: `images` or `texts`.
        about: What it is, in a few words.
        source: Where it lies on the Hub.
        options: Its configuration and columns there.
        parts: Its parts, `test` among them.
        classes: How many; None where it is read without labels.
        licence: As its card has it.
        home: Where to read of it.
        note: What else one has to know or do.
        benchmark: OpenOOD's folder of lists for it.
        listed: Those of its own parts.
        outside: The sets that are out-of-distribution to it.
        zero_shot: Whether it is one of the nine that the paper classifies zero-shot.
    """

    name: str
    content: str
    about: str
    source: str
    options: Mapping[str, str]
    parts: Mapping[str, PresetPart]
    licence: str
    home: str
    classes: int | None = None
    note: str | None = None
    benchmark: str | None = None
    listed: Mapping[str, Listed] = field(default_factory=dict)
    outside: tuple[Outside, ...] = ()
    zero_shot: bool = False
