"""How long work speaks, without knowing a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """What a stage may tell its caller while it runs."""

    def step(self, message: str) -> None:
        """Say what begins now, as one literal line."""
        ...

    def warn(self, message: str) -> None:
        """Say what the user should know about although work goes on."""
        ...

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
        """Yield `items` unchanged while showing how many of `total` are done; None where nobody knows how many there are."""
        ...


class Silent:
    """A `Progress` that says nothing."""

    def step(self, message: str) -> None:
        """Drop the message."""

    def warn(self, message: str) -> None:
        """Drop the warning."""

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:  # noqa: ARG002 - the protocol's signature
        """Return `items` as they are."""
        return items


SILENT = Silent()
