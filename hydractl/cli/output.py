"""Output of commands: tables, and the JSON document of `--json` with the result, the error, or both."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

import typer

from hydractl.errors import (
    HydraError,
    Interrupted,
    OutputError,
    UsageError,
    escape_line,
    escape_unsafe,
    in_one_line,
    reason_of,
)
from hydractl.messages import count
from hydractl.output.publish import STDOUT
from hydractl.processes.distributed import LINGER_S
from hydractl.processes.signals import heed_no_more_signals

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hydractl.reporting.report_values import ReportTable


DOCUMENT: ContextVar[CommandDocument | None] = ContextVar("document", default=None)
"""The JSON document of the running command."""
REPORT_A_BUG = "please report it, with the lines above: https://github.com/hydractl/hydractl/issues"


class CommandDocument:
    """The JSON document of a command line.

    A result is held until the command ends, because a later check may fail.
    """

    def __init__(self, *, writes_json: bool, write: Callable[[object], None]) -> None:
        """Start an empty document.

        Args:
            writes_json: Whether the command line has `--json`, and this process is rank 0.
            write: Prints a document.
        """
        self._write = write
        self._is_pending = writes_json
        self._stdout = sys.stdout
        self._caller = DOCUMENT.get()
        self._result: Any = None
        self._error: dict[str, Any] | None = None

    def hold(self, result: object) -> None:
        """Store a command's result until the command ends."""
        self._result, self._is_pending = result, True

    def write(self) -> None:
        """Print the document once.

        Raises:
            OutputError: If standard output cannot be written.
        """
        document = self._result
        if self._error is not None:
            document = {**(document if isinstance(document, dict) else {}), "error": self._error}
        if document is not None and self._is_pending:
            self._is_pending = False
            self._write(document)

    def fail(self, error: BaseException) -> None:
        """Store an error and print the document.

        The calling command line, for example `run`, stores the error too.
        """
        if isinstance(error, HydraError):
            named = error
        elif isinstance(error, KeyboardInterrupt | typer.Abort):
            named = Interrupted("; ".join(("interrupted", *getattr(error, "__notes__", ()))))
        else:
            named = HydraError(f"{type(error).__name__}: {reason_of(error)}", hint=REPORT_A_BUG)
        self._error = named.to_dict()
        if self._caller is not None:
            self._caller._error = self._error
            if self._is_pending and self._caller._stdout is sys.stdout:
                self._caller._is_pending = False
        # The exit code and standard error also show the failure.
        with contextlib.suppress(OutputError, BrokenPipeError):
            self.write()


@contextlib.contextmanager
def command_document(arguments: Sequence[str], write: Callable[[object], None]) -> Iterator[CommandDocument]:
    """Create the document of a command line for a block; `write` prints it."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    document = CommandDocument(
        writes_json="--json" in options and os.environ.get("RANK", "0") == "0", write=write
    )
    token = DOCUMENT.set(document)
    try:
        yield document
    finally:
        DOCUMENT.reset(token)


T = TypeVar("T")


class StageReport(Protocol):
    """Report of a stage, with at least the written files."""

    @property
    def paths(self) -> tuple[Path | str, ...]:
        """Written files in order, or addresses of remote outputs."""
        ...


R = TypeVar("R", bound=StageReport)


class Terminal:
    """The output of a command on the terminal.

    Only rank 0 prints. Colour and bars need a terminal; `NO_COLOR` disables colour.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        out: Path | None = None,
        prints: str | None = None,
    ) -> None:
        """Choose the destinations of result and messages.

        Args:
            as_json: Print the result in a JSON document.
            quiet: Print only the paths written, and no progress.
            out: Output of the command. `-` reserves standard output for the output; the result is printed to
                standard error.
            prints: Description of the output, for commands with output on standard output by default.

        Raises:
            UsageError: If `as_json` is given with `quiet`, or with output on standard output.
        """
        if as_json and quiet:
            raise UsageError("`--json` and `-q` exclude each other")
        self.stdout_taken = out == STDOUT
        if self.stdout_taken and as_json:
            conflict = f"`--json`: standard output already has {prints}"
            raise UsageError(
                conflict if prints else "`-o -` and `--json` both write to standard output",
                hint="leave out `--json`, or write the output to a file: `-o FILE`",
            )
        self.as_json = as_json
        self.quiet = quiet
        self.speaks = os.environ.get("RANK", "0") == "0"
        self.warnings: list[str] = []

    def progress(self) -> TerminalProgress:
        """Return a `Progress` for a stage."""
        return TerminalProgress(
            steps=self.speaks and not self.quiet and not self.as_json,
            warnings=self.speaks,
            record=self.warnings,
        )

    def result(self, report: R, render: Callable[[R, Console], None]) -> None:
        """Print a stage's result.

        Args:
            report: A frozen dataclass.
            render: Prints the report for people. The written files are printed afterwards.
        """
        if self.as_json:
            document = cast("dict[str, Any]", as_json(report))
            if warnings := [*dict.fromkeys([*document.get("warnings", ()), *self.warnings])]:
                document["warnings"] = warnings
            self.document(document)
            return
        paths = [path for path in report.paths if path != STDOUT]
        with written_out():
            if self.quiet and self.speaks:
                sys.stdout.write("".join(f"{path}\n" for path in paths))
            elif self.speaks:
                out = console(stderr=self.stdout_taken)
                render(report, out)
                for path in paths:
                    line(out, f"Wrote {path}")

    def up_to_date(self, paths: Iterable[Path]) -> None:
        """Print a line about outputs that are up to date."""
        if self.as_json:
            self.document({"paths": [str(path) for path in paths], "up_to_date": True})
        elif self.speaks:
            with written_out():
                sys.stdout.write("".join(f"{path}{'' if self.quiet else ': up to date'}\n" for path in paths))

    def document(self, value: object) -> None:
        """Print a JSON document to standard output when the command ends."""
        if not self.speaks:
            return
        if (document := DOCUMENT.get()) is None:
            write_json(value)
        else:
            document.hold(value)


def write_json(value: object) -> None:
    """Print a JSON document to standard output.

    Raises:
        OutputError: If standard output cannot be written.
    """
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=not unicode)
    with written_out():
        sys.stdout.write(escape_unsafe(text, escape=lambda letter: json.dumps(letter)[1:-1]) + "\n")


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Flush standard output at the end of a block, while a failure can still be reported.

    Raises:
        OutputError: If standard output cannot be written, except for a closed pipe.
        BrokenPipeError: If the pipe is closed.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None:
            raise
        drop_stdout()
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def refusal() -> HydraError | None:
    """Flush standard output, and return the error if that fails; else None.

    After a failure the buffer is discarded. A closed pipe is not an error.
    """
    try:
        with written_out():
            pass
    except OutputError as refused:
        return refused
    except BrokenPipeError:
        drop_stdout()
    return None


def drop_stdout() -> None:
    """Redirect standard output to nowhere, to prevent an error from flushing the buffer at exit."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


class TerminalProgress:
    """A `Progress` on standard error: dim lines for steps, and a bar for long loops on a terminal."""

    def __init__(self, *, steps: bool, warnings: bool, record: list[str] | None = None) -> None:
        self._steps = steps
        self._warnings = warnings
        self._record = [] if record is None else record

    def step(self, message: str) -> None:
        """Print the beginning of a step."""
        if self._steps:
            say(escape_line(message), style="dim")

    def warn(self, message: str) -> None:
        """Print a warning, also in quiet mode, and store it for `--json`."""
        self._record.append(message)
        if self._warnings and on_github():
            annotate("warning", in_one_line(message))
        elif self._warnings:
            say(f"warning: {in_one_line(message)}", style="yellow")

    def track(self, items: Iterable[T], *, label: str, total: int | None) -> Iterable[T]:
        """Show a bar with rate and remaining time while `items` are consumed."""
        if not (self._steps and sys.stderr.isatty()) or on_github():
            return items
        return _tracked(items, label, total)


def _tracked(items: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(escape_line(label), total=total)
        for item in items:
            yield item
            bar.advance(task)


def console(*, stderr: bool = False) -> Console:
    """Return a console with colours for terminals only. The console never shortens or interprets text."""
    from hydractl.cli.tables import PipedConsole, WorkflowLog

    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty()
    # Rich writes escape sequences into a pipe if it finds variables of continuous integration.
    return PipedConsole(
        file=cast("IO[str]", WorkflowLog(stream)) if on_github() else stream,
        force_terminal=terminal,
        # `no_color` alone would keep bold and dim.
        color_system="auto" if terminal and "NO_COLOR" not in os.environ else None,
        width=None if terminal else 200,
        highlight=False,
    )


def say(message: str, *, style: str | None = None) -> None:
    """Print a literal line to standard error."""
    from rich.text import Text

    console(stderr=True).print(Text(escape_unsafe(message), style=style or ""), soft_wrap=True)


def fail(error: HydraError) -> None:
    """Print an error with hint. All ranks print, because the error may concern a single rank."""
    heed_no_more_signals()
    rank = os.environ.get("RANK", "0")
    rank_prefix = "" if rank == "0" else f"rank {rank}: "
    if on_github():
        annotate("error", f"{rank_prefix}{error.message}")
    else:
        say(f"{rank_prefix}error: {error.message}", style="bold red")
    if error.hint:
        say(f"\nhint: {error.hint}")


def interrupted(error: BaseException) -> None:
    """Print on rank 0 that the command was interrupted, with the notes of the exception."""
    if os.environ.get("RANK", "0") == "0":
        say("; ".join(("interrupted", *getattr(error, "__notes__", ()))))


def on_github() -> bool:
    """Return whether this process runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(kind: str, message: str) -> None:
    """Print an annotation for GitHub Actions; `kind` is `error` or `warning`."""
    for sign, escaped in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        message = message.replace(sign, escaped)
    sys.stderr.write(f"::{kind} title=hydractl::{escape_unsafe(message)}\n")


def summarize(lines: Iterable[str]) -> None:
    """Append Markdown lines to the job summary of GitHub Actions. Does nothing elsewhere."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if on_github() and path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def leader_is_silent() -> bool:
    """Return whether this rank must report an error that rank 0 also detects.

    True on rank 0, and if rank 0 has not ended the run within `LINGER_S` seconds.
    """
    if os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    try:
        time.sleep(LINGER_S)
    except KeyboardInterrupt:  # The launcher interrupts the other ranks after rank 0 has reported the error.
        return False
    return True


def line(out: Console, message: str) -> None:
    """Print a literal line of a result, unwrapped."""
    from rich.text import Text

    out.print(Text(escape_line(message)), soft_wrap=True)


def table(
    columns: Iterable[str], rows: Iterable[Iterable[str]], *, title: str | None = None, left: int = 1
) -> RenderableType:
    """Return a table of literal texts with `left` left-aligned columns.

    Tables are folded on a narrow terminal.
    """
    from hydractl.cli.tables import Grid

    return Grid(columns=tuple(columns), rows=tuple(map(tuple, rows)), title=title, left=left)


def table_of(report_table: ReportTable) -> RenderableType:
    """Return the table of a report for the terminal."""
    rows = [(name, *(cell.text for cell in cells)) for name, cells in report_table.rows]
    return table((report_table.of, *report_table.heads), rows, title=report_table.title)


def model_cell(reference: str) -> str:
    """Return the name of a model in a table: `arch:NAME::...` for `arch:` references with options.

    Standard input (`-`) has the name `stdin`. Other references are returned unchanged.
    """
    name, options, _ = reference.partition("::")
    return (
        "stdin" if reference == "-" else f"{name}::..." if options and name.startswith("arch:") else reference
    )


def size(value: int) -> str:
    """Return a number of bytes with a unit: 812 B, 46.17 GB."""
    text = count(value)
    return f"{text}B" if " " in text else f"{text} B"


def as_json(value: object) -> object:
    """Convert a report to JSON types: dataclasses, paths, enums, tuples, pydantic models.

    NaN and infinity become None.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN or infinity.
    from pydantic import BaseModel

    return as_json(value.model_dump(mode="json", by_alias=True)) if isinstance(value, BaseModel) else value
