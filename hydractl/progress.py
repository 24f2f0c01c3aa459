"""Messages and progress bars of a running stage.

A stage reports to one `Progress` object for as long as it runs (`reporting`). Code below a stage calls `step`, `warn` and `track`
of this module, which pass the call to that object, so that no function needs the object as an argument. Without a stage, all
three are silent. Each thread starts silent.
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
        """Show what begins now, as one literal line."""
        ...

    def warn(self, message: str) -> None:
        """Show a problem that does not stop the stage."""
        ...

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
        """Yield `items` unchanged and show how many of `total` are done. A total of None is unknown."""
        ...


class Silent:
    """A `Progress` that shows nothing."""

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
    """Pass `step`, `warn` and `track` to a receiver for as long as the block runs. The innermost block counts."""
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
    """Add the argument `progress` to a run function, and pass the messages of the run to it."""

    @wraps(run)
    def run_reporting(config: Config_contra, progress: Progress = SILENT) -> Report_co:
        with reporting(progress):
            return run(config)

    return run_reporting


def step(message: str) -> None:
    """Show what begins now; see `Progress.step`."""
    _receiver.get().step(message)


def warn(message: str) -> None:
    """Show a problem that does not stop the stage; see `Progress.warn`."""
    _receiver.get().warn(message)


def track(items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
    """Yield `items` unchanged and show how many are done; see `Progress.track`."""
    return _receiver.get().track(items, label=label, total=total)
