"""The one JSON document that a command prints on standard output under `--json`: its result, its failure, or both."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import typer

from hydractl.errors import HydraError, Interrupted, OutputError, reason_of

DOCUMENT: ContextVar[CommandDocument | None] = ContextVar("document", default=None)
"""The JSON document of the running command."""
REPORT_A_BUG = "please report it, with the lines above: https://github.com/hydractl/hydractl/issues"


class CommandDocument:
    """The document of one command line. A result waits here until the command ends, for a check may fail after it."""

    def __init__(self, *, writes_json: bool, write: Callable[[object], None]) -> None:
        """Begin.

        Args:
            writes_json: Whether the command line has `--json`, and this process is the one that speaks.
            write: Prints a document.
        """
        self._write = write
        self._wanted = writes_json
        self._stdout = sys.stdout
        self._caller = DOCUMENT.get()
        self._result: Any = None
        self._error: dict[str, Any] | None = None

    def hold(self, result: object) -> None:
        """Keep a command's result until the command ends."""
        self._result, self._wanted = result, True

    def write(self) -> None:
        """Print the document, once.

        Raises:
            OutputError: If standard output cannot be written.
        """
        document = self._result
        if self._error is not None:
            document = {**(document if isinstance(document, dict) else {}), "error": self._error}
        if document is not None and self._wanted:
            self._wanted = False
            self._write(document)

    def fail(self, error: BaseException) -> None:
        """Note a failure and print the document; the command line that runs this one, such as `run`, fails by it too."""
        if isinstance(error, HydraError):
            named = error
        elif isinstance(error, KeyboardInterrupt | typer.Abort):
            named = Interrupted("; ".join(("interrupted", *getattr(error, "__notes__", ()))))
        else:
            named = HydraError(f"{type(error).__name__}: {reason_of(error)}", hint=REPORT_A_BUG)
        self._error = named.to_dict()
        if self._caller is not None:
            self._caller._error = self._error
            if self._wanted and self._caller._stdout is sys.stdout:
                self._caller._wanted = False
        with contextlib.suppress(OutputError, BrokenPipeError):  # the exit code and standard error say it
            self.write()


@contextlib.contextmanager
def command_document(arguments: Sequence[str], write: Callable[[object], None]) -> Iterator[CommandDocument]:
    """Hold the document of a command line while it runs; `write` prints it."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    document = CommandDocument(
        writes_json="--json" in options and os.environ.get("RANK", "0") == "0", write=write
    )
    token = DOCUMENT.set(document)
    try:
        yield document
    finally:
        DOCUMENT.reset(token)
