"""Texts for messages: counts, times, lists of names, and suggestions for misspelled names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

NUMBERS_SHOWN = 20
"""Maximum number of values of a tuple in a table. Chosen by hand; twice the number makes the line twice as
long."""
MOST_ENTRIES = 2000
"""Maximum number of folder entries that are compared with a missing name. A data set may have a million
entries. Chosen by hand; twice the number doubles the time of the comparison."""


def count(value: float) -> str:
    """Return a count with a unit prefix: `812`, `116.30 M`, `46.17 G`."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(value) < 1000:
            return f"{value:.0f}" if not unit else f"{value:.2f}{unit}"
        value /= 1000
    return f"{value:.2f} P"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and a noun, in singular or plural: `1 member`, `3 members`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def duration_text(seconds: float) -> str:
    """Return a duration in a fitting unit: `0.40 s`, `12 s`, `3.5 min`, `2.0 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.2f} s"


def number_text(value: float) -> str:
    """Format a number: integers (for example seeds) with all digits, floats with six significant digits."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def listed(words: Sequence[str], *, last: str = "and") -> str:
    """Return words as a list in a sentence: `a, b and c`, with `last` for "and"; empty without words."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def quoted(names: Iterable[object], *, most: int | None = None) -> str:
    """Return names in backticks, separated by commas: "`a`, `b`, ..."; empty without names.

    Only the first `most` names are shown.
    """
    every = [f"`{name}`" for name in names]
    return ", ".join(every if most is None or len(every) <= most else [*every[:most], "..."])


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate nearest to `name`, or None.

    The shortest candidate with the beginning `name` is preferred to similar spellings.
    """
    names = sorted(candidates)
    prefixed = sorted((closest for closest in names if name and closest.startswith(name)), key=len)
    return next(iter(prefixed or difflib.get_close_matches(name, names, n=1)), None)


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """Return the hint "did you mean `NAME`?" with the nearest candidate, or None if no candidate is near."""
    near = nearest(name, candidates)
    return f"did you mean `{near}`?" if near else None


def did_you_mean_path(path: str) -> str | None:
    """Return a hint with an existing path similar to a missing path, or None.

    Args:
        path: The missing path. The first missing part is compared with the entries of the folder above.
    """
    missing = Path(path)
    try:
        while missing.parent != missing and not missing.parent.is_dir():
            missing = missing.parent
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in islice(entries, MOST_ENTRIES)]
        hidden = missing.name.startswith(".")
        near = nearest(missing.name, (name for name in names if hidden or not name.startswith(".")))
        suggestion = missing.with_name(near) / Path(path).relative_to(missing) if near else missing
        ending = "/" if path.endswith("/") else ""
        return f"did you mean `{suggestion}{ending}`?" if suggestion.exists() else None
    except OSError:  # The folder is unreadable, or a name is too long for a path.
        return None


def abridged(value: object) -> str:
    """Return a value as text for a table: floats with three significant digits, tuples separated by commas.

    Only the first `NUMBERS_SHOWN` values of a tuple are shown.
    """
    if isinstance(value, tuple):
        return ", ".join([*map(abridged, value[:NUMBERS_SHOWN]), *["..."] * (len(value) > NUMBERS_SHOWN)])
    return f"{value:.3g}" if isinstance(value, float) else str(value)
