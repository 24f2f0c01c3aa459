"""Figures of a run, logged to experiment trackers while it goes: those of accelerate, in the process that leads.

A run is called what its output is, with a number drawn for it. A file beside the trackers' own says which run it was, so that an
interrupted one goes on under its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hydractl.errors import InputError, OutputError, UsageError, reason_of
from hydractl.output.atomic_write import is_stream, make_folder, publish_text
from hydractl.strict_json import parse

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""What accelerate calls them, what is imported, and what is installed."""
PROJECT = "hydractl"
"""The trackers' project, or experiment."""
LAUNCHER = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""What a launcher says to each process."""
LOG_EVERY = 10
"""Steps between losses that are logged."""


class RunLog:
    """Where a run logs figures; this one keeps nothing, and asks for none.

    Attributes:
        every: Steps between losses; None for no losses.
    """

    every: int | None = None

    def due(self, step: int) -> bool:
        """Return whether the loss of a step, counted from 1, is logged: in all processes alike."""
        return self.every is not None and step % self.every == 0

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log figures of a step."""


NO_LOG = RunLog()


class TrackedLog(RunLog):
    """A log to trackers; of a process that does not lead, to none of them."""

    every = LOG_EVERY

    def __init__(self, trackers: Sequence[Any] = ()) -> None:
        """Log to trackers of accelerate that have started."""
        self.trackers = trackers

    @override
    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log figures of a step.

        Raises:
            OutputError: If a tracker cannot.
        """
        for tracker in self.trackers:
            with _asking(tracker.name):
                tracker.log(dict(values), step=step)


def check_log(names: Sequence[str], log_dir: Path | None, out: Path) -> None:
    """Refuse a log that cannot be opened; arguments as in `open_run_log`.

    Raises:
        UsageError: If a tracker is not installed, or the output is a stream and names no folder.
    """
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"`--log-to {name}`: {name} is not installed", hint=f"`pip install {name}`")
    if names and log_dir is None and is_stream(out):
        raise UsageError(
            "`--log-to`: nothing says where, as the output is a stream", hint="add `--log-dir DIR`"
        )


@contextlib.contextmanager
def open_run_log(
    names: Sequence[str],
    log_dir: Path | None,
    *,
    out: Path,
    options: Mapping[str, OptionValue],
    resumes: bool,
    leads: bool,
) -> Iterator[RunLog]:
    """Start trackers for the block; of several processes the one that leads logs.

    Args:
        names: What accelerate calls them; none log nothing.
        log_dir: Where tensorboard and wandb write, and what an interrupted run was called; None for a folder beside the output.
        out: The output, whose name the run's begins with.
        options: Of the run, logged as its configuration.
        resumes: Whether an interrupted run goes on.
        leads: Whether this process logs.

    Raises:
        OutputError: If a tracker does not start, or the folder cannot be written.
        InputError: If what an interrupted run left there cannot be read.
    """
    if not (names and leads):
        yield TrackedLog() if names else NO_LOG
        return
    folder = log_dir or out.with_name(f"{out.name}.logs")
    path = folder / f"{out.name}.run.json"
    make_folder(folder, hint="add `--log-dir DIR`")
    record = _read(path) if resumes else {}
    name = record.get("name") or f"{out.name}-{secrets.token_hex(3)}"
    places: dict[str, dict[str, object]] = {
        "tensorboard": {"run_name": name, "logging_dir": folder},
        "wandb": {"run_name": PROJECT, "name": name, "id": name, "dir": folder, "resume": "allow"},
        "trackio": {"run_name": PROJECT, "name": name, "resume": "allow"},
        "mlflow": {"experiment_name": PROJECT, "run_name": name, "run_id": record.get("mlflow")},
    }
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(tracker, places[tracker])) for tracker in names]
        if not record:
            configuration = {k: _plain(option) for k, option in options.items() if option is not None}
            for tracker in started:
                with _asking(tracker.name):
                    tracker.store_init_configuration(configuration)
        ids = {t.name: t.tracker.info.run_id for t in started if t.name == "mlflow"}
        publish_text(path, json.dumps({"name": name, **ids}) + "\n")
        yield TrackedLog(started)


@contextlib.contextmanager
def _started(name: str, options: Mapping[str, object]) -> Iterator[Any]:
    """Start a tracker for the block."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # noqa: PLC0415 - a second that other runs need not pay

    # else it would ask accelerate, in any process, which one this is
    kind = type("Tracker", (LOGGER_TYPE_TO_CLASS[name],), {"main_process_only": False})
    with _asking(name):
        tracker = kind(**options)
        tracker.start()
    try:
        yield tracker
    finally:
        with _asking(name):
            tracker.finish()


@contextlib.contextmanager
def _asking(name: str) -> Iterator[None]:
    """Translate what a tracker's library raises; let accelerate, which asks itself in each call, know that one process asks."""
    from accelerate.state import PartialState  # noqa: PLC0415 - as above

    needs_state = not PartialState._shared_state
    try:
        # standard output is the command's own, which a library may not know
        with (
            contextlib.redirect_stdout(sys.stderr),
            _without_launcher() if needs_state else contextlib.nullcontext(),
        ):
            if needs_state:
                PartialState(cpu=True)
            yield
    except Exception as error:  # libraries raise what they like
        raise OutputError(
            f"`--log-to {name}`: {reason_of(error)}",
            hint=f"see that {name} can write where it is to, or leave `--log-to {name}` out",
        ) from error
    finally:
        if needs_state:
            PartialState._reset_state()


@contextlib.contextmanager
def _without_launcher() -> Iterator[None]:
    """Hide from accelerate what a launcher says: the processes of this run have met already."""
    names = [name for name in os.environ if name.startswith("ACCELERATE_") or name in LAUNCHER]
    before = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(before)


def _read(path: Path) -> dict[str, str]:
    """Return what an interrupted run was called; nothing where none was logged."""
    if not path.exists():
        return {}
    try:
        record = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read: {reason_of(error)}", hint="choose another `--log-dir`"
        ) from error
    if not isinstance(record, dict) or not all(isinstance(v, str) for v in record.values()):
        raise InputError(f"{path}: does not say what a run was called", hint="choose another `--log-dir`")
    return record


def _plain(option: OptionValue) -> str | int | float | bool | None:
    """Return an option as trackers take them."""
    return ",".join(map(str, option)) if isinstance(option, tuple) else option
