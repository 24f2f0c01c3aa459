"""Messages and progress bars of a running stage.

A running stage has a receiver, a `Progress` object (`reporting`). Code below a stage calls `step`, `warn` and
`track` of this module. They forward to the receiver, so no function needs the object as an argument. Outside
a stage, all three are silent. Each thread starts silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Protocol, TypeVar

T = TypeVar("T")
Config_contra = TypeVar("Config_contra", contravariant=True)
Report_co = TypeVar("Report_co", covariant=True)


class Progress(Protocol):
    """Receiver of the messages of a stage."""

    def step(self, message: str) -> None:
        """Show the beginning of a step on a line, without markup."""
        ...

    def warn(self, message: str) -> None:
        """Show a problem; the stage continues."""
        ...

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
        """Yield `items` unchanged and show the number of finished items. `total` is None if unknown."""
        ...


class Silent:
    """A `Progress` without output."""

    def step(self, message: str) -> None:
        """Drop the message."""

    def warn(self, message: str) -> None:
        """Drop the warning."""

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:  # noqa: ARG002 - the protocol's signature
        """Return `items`."""
        return items


SILENT = Silent()
_receiver: ContextVar[Progress] = ContextVar("receiver", default=SILENT)


@contextmanager
def reporting(receiver: Progress) -> Iterator[None]:
    """Forward `step`, `warn` and `track` to a receiver within the block. The innermost block counts."""
    token = _receiver.set(receiver)
    try:
        yield
    finally:
        _receiver.reset(token)


class Stage(Protocol[Config_contra, Report_co]):
    """The run function of a stage."""

    def __call__(self, config: Config_contra, progress: Progress = SILENT) -> Report_co:
        """Run the stage and report to `progress`."""
        ...


def stage(run: Callable[[Config_contra], Report_co]) -> Stage[Config_contra, Report_co]:
    """Add the argument `progress` to a run function, and forward the messages of the run to it."""

    @wraps(run)
    def run_reporting(config: Config_contra, progress: Progress = SILENT) -> Report_co:
        with reporting(progress):
            return run(config)

    return run_reporting


def step(message: str) -> None:
    """Show the beginning of a step; see `Progress.step`."""
    _receiver.get().step(message)


def warn(message: str) -> None:
    """Show a problem; see `Progress.warn`."""
    _receiver.get().warn(message)


def track(items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
    """Yield `items` unchanged and show the number of finished items; see `Progress.track`."""
    return _receiver.get().track(items, label=label, total=total)
