"""How long work speaks, without knowing a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and what it counts, in the singular for one: `1 member`, `3 members`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def quoted(names: Iterable[object], *, most: int | None = None) -> str:
    """Return names between backticks and commas, the first `most` of them: "`a`, `b`, ..."."""
    every = [f"`{name}`" for name in names]
    return ", ".join(every if most is None or len(every) <= most else [*every[:most], "..."])


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known name nearest to `name`, or None if none is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean `{near[0]}`?" if near else None


class Progress(Protocol):
    """What a stage may tell its caller while it runs."""

    def step(self, message: str) -> None:
        """Say what begins now, as one literal line."""
        ...

    def warn(self, message: str) -> None:
        """Say what the user should know about although work goes on."""
        ...

    def track(self, items: Iterable[T], *, label: str, total: int) -> Iterable[T]:
        """Yield `items` unchanged while showing how many of `total` are done."""
        ...


class Silent:
    """A `Progress` that says nothing."""

    def step(self, message: str) -> None:
        """Drop the message."""

    def warn(self, message: str) -> None:
        """Drop the warning."""

    def track(self, items: Iterable[T], *, label: str, total: int) -> Iterable[T]:  # noqa: ARG002 - the protocol's signature
        """Return `items` as they are."""
        return items


SILENT = Silent()
