"""Names of files in figures and tables: short, literal, and never wider than their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the leading folders that are not needed to tell them apart; equal names stay equal."""
    return tuple(_apart(name, {other for other in names if other != name}) for name in names)


def _apart(name: str, others: set[str]) -> str:
    for begin in range(name.count("/"), 0, -1):
        short = "/".join(name.split("/")[begin:])
        if short and not any(f"/{other}".endswith(f"/{short}") for other in others):
            return short
    return name


def wrapped(name: str, letters: int, *, lines: int) -> str:
    """Return a name in at most `lines` lines of at most `letters` letters, without its middle where it is longer."""
    text = shortened(printable(name), letters * lines)
    return "\n".join(text[i : i + letters] for i in range(0, len(text), letters))


def shortened(text: str, letters: int) -> str:
    """Return a text of at most `letters` letters, without its middle where it is longer: a path's end says most."""
    if len(text) <= letters:
        return text
    head = (letters - 1) // 3
    return f"{text[:head]}…{text[len(text) - (letters - 1 - head) :]}"


def printable(text: str) -> str:
    """Return a text without line breaks and undecodable bytes, which a figure cannot show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
