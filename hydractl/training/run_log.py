"""Logging of metrics to experiment trackers through accelerate, in the leading process only.

The name of a run is the name of its output and a random suffix. A file in the log folder stores the name for
resumed runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.errors import InputError, OutputError, UsageError, reason_of
from hydractl.output.publish import has_content, is_stream, make_folder, publish_text
from hydractl.strict_json import parse

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers. Accelerate, the tracker's Python module and its package on PyPI use the same name."""
PROJECT = "hydractl"
"""Name of the project, or experiment, in each tracker."""
LAUNCHER = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""Environment variables of each process under a launcher of several processes."""
LOG_EVERY = 10
"""Number of steps between logged losses. Chosen by hand; 20 would halve the number of points and of waits for
the device, because each logged loss is copied to the CPU."""


class RunLog:
    """Log of a run's metrics in one or more experiment trackers.

    Attributes:
        trackers: Started trackers of accelerate. Empty in processes that do not lead.
        every: Number of steps between logged losses, or None to log no losses.
    """

    def __init__(self, trackers: Sequence[Any] = (), *, every: int | None = None) -> None:
        self.trackers, self.every = trackers, every

    def due(self, step: int) -> bool:
        """Return whether to log the loss of a step, counted from 1. The result is the same in all processes."""
        return self.every is not None and step % self.every == 0

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the metrics of a step.

        Raises:
            OutputError: If a tracker fails.
        """
        for tracker in self.trackers:
            with _asking(tracker.name):
                tracker.log(dict(values), step=step)


NO_LOG = RunLog()


def check_log(names: Sequence[str], log_dir: Path | None, out: Path) -> None:
    """Raise if the arguments do not suit `open_run_log`, before any work.

    Raises:
        UsageError: If a tracker is not installed, or if the output is a stream and `log_dir` is None.
    """
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"`--log-to {name}`: {name} is not installed", hint=f"`pip install {name}`")
    if names and log_dir is None and is_stream(out):
        raise UsageError(
            "`--log-to`: the output is a stream, so there is no default folder for the log",
            hint="add `--log-dir DIR`",
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
    """Start the trackers, and stop them at the end of the block. Only the leading process logs.

    Args:
        names: Names from `TRACKERS`. If empty, nothing is logged.
        log_dir: Folder for the file with the run's name and for the files of tensorboard and wandb. None for
            `OUTPUT.logs`.
        out: Path of the output. The run's name begins with its file name.
        options: Options of the command, logged as the configuration.
        resumes: Whether to continue an interrupted run.
        leads: Whether this is the leading process.

    Raises:
        OutputError: If a tracker does not start, or the folder is not writable.
        InputError: If the stored name of an interrupted run is unreadable.
    """
    if not (names and leads):
        yield RunLog(every=LOG_EVERY) if names else NO_LOG
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
            # Trackers do not accept tuples.
            configuration = {
                k: ",".join(map(str, option)) if isinstance(option, tuple) else option
                for k, option in options.items()
                if option is not None
            }
            for tracker in started:
                with _asking(tracker.name):
                    tracker.store_init_configuration(configuration)
        ids = {t.name: t.tracker.info.run_id for t in started if t.name == "mlflow"}
        publish_text(path, json.dumps({"name": name, **ids}) + "\n")
        yield RunLog(started, every=LOG_EVERY)


@contextlib.contextmanager
def _started(name: str, options: Mapping[str, object]) -> Iterator[Any]:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS  # noqa: PLC0415 - importing accelerate takes a second

    # Accelerate would decide on its own which process is the main one; the caller has decided already.
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
    """Turn errors of a tracker into `OutputError`.

    Trackers of accelerate need a state, so the block runs with the state of a single process.
    """
    from accelerate.state import PartialState  # noqa: PLC0415 - as above

    needs_state = not PartialState._shared_state
    try:
        # Standard output is reserved for the result of the command.
        with (
            contextlib.redirect_stdout(sys.stderr),
            # The processes of this run are already connected; accelerate would connect them a second time.
            without_variables(LAUNCHER) if needs_state else contextlib.nullcontext(),
        ):
            if needs_state:
                PartialState(cpu=True)
            yield
    except Exception as error:  # Trackers raise exceptions of any class.
        raise OutputError(
            f"`--log-to {name}`: {reason_of(error)}",
            hint=f"check that {name} can write its files, or leave out `--log-to {name}`",
        ) from error
    finally:
        if needs_state:
            PartialState._reset_state()


@contextlib.contextmanager
def without_variables(names: Collection[str] = ()) -> Iterator[None]:
    """Hide the environment variables `ACCELERATE_*`, and the variables in `names`, within the block."""
    hidden = [name for name in os.environ if name.startswith("ACCELERATE_") or name in names]
    before = {name: os.environ.pop(name) for name in hidden}
    try:
        yield
    finally:
        os.environ.update(before)


def _read(path: Path) -> dict[str, str]:
    """Return the stored names of an interrupted run; empty if the run was not logged.

    The keys are `name`, and `mlflow` for the id of mlflow's run.

    Raises:
        InputError: If the file cannot be read or has other content.
    """
    if not has_content(path):
        return {}
    try:
        record = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read: {reason_of(error)}", hint="choose another `--log-dir`"
        ) from error
    if not isinstance(record, dict) or not all(isinstance(v, str) for v in record.values()):
        raise InputError(f"{path}: does not hold the name of a run", hint="choose another `--log-dir`")
    return record
