"""Rows of the hint table: a wrong command with a hint, and the corrected command."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hydractl.errors import HydraError
from support.hints.texts import pattern

NUMBER = "NUMBER"
_COMPUTED = re.compile(r"(--[a-z][\w-]*) (\d[\d.]*)")


@dataclass(frozen=True)
class Row:
    """A wrong command that prints a hint, and the command that follows the hint.

    Attributes:
        hint: Template of the hint (`support.hints.texts`).
        wrong: Command line without `hydractl`, in shell quotes, or `python CODE`. Its error must print the
            hint.
        right: Command line after the hint was followed. It must not fail with the same error. `NUMBER` is
            replaced by the first number of an option in the printed hint.
        files: Texts or bytes of further files, by path.
        before: Command lines that run first and succeed.
        prepare: Called in the folder before the wrong command, for other preparations.
        mend: Called before the right command, if the hint requires a change of a file or of the machine.
        environment: Environment variables of the wrong command.
        stdin: Standard input of both commands.
        code: Exit code of the second command, for a machine without the required resources.
        test: Test of the hint (`tests/file.py::function`) instead of commands. For hints that need a Hub server,
            several processes, a full disk or a missing library.
        research: Whether research defines the hint.
    """

    hint: str
    wrong: str = ""
    right: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    prepare: Callable[[], object] | None = None
    mend: Callable[[], object] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    code: int = 0
    test: str = ""
    research: bool = False

    def __str__(self) -> str:
        return self.hint[:70]


@dataclass(frozen=True)
class Outcome:
    """Exit code of a command, message of its error without folders, and its hint."""

    code: int
    message: str
    hint: str


def call(code: str) -> Outcome:
    """Run Python code, for hints of the Python functions."""
    try:
        exec(code, {})  # noqa: S102 - a row's own text
    except HydraError as error:
        return Outcome(error.exit_code, error.message, error.hint or "")
    return Outcome(0, "", "")


def run(line: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Outcome:
    """Run a command line, or code after `python `, in this process and the current folder."""
    from hydractl.cli.app import main

    if line.startswith("python "):
        return call(line.removeprefix("python "))
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    before, standard_input = dict(os.environ), sys.stdin
    os.environ.update(environment or {})
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(shlex.split(line))
    finally:
        sys.stdin = standard_input
        os.environ.clear()
        os.environ.update(before)
    printed = errors.buffer.getvalue().decode()
    message = re.search(r"^error: (.*)$", printed, re.MULTILINE)
    hint = re.search(r"^hint: (.*)$", printed, re.MULTILINE)
    return Outcome(code, message[1] if message else "", hint[1] if hint else "")


def check(row: Row, *, follow: bool = True) -> None:
    """Run a row's commands in the current folder.

    Args:
        row: The row.
        follow: Whether the second command runs. Otherwise only its text is compared with the hint.

    Raises:
        AssertionError: If the wrong command does not print the hint, the second command does not follow it, or fails with
            the same error.
    """
    for path, text in row.files.items():
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        # The file is a hard link to the shared material and must not be changed.
        file.unlink(missing_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for line in row.before:
        assert run(line).code == 0, f"{line}: {run(line).message}"
    if row.prepare is not None:
        row.prepare()
    wrong = run(row.wrong, row.stdin, row.environment)
    assert wrong.code in {2, 3, 4, 5, 6}, f"exit code {wrong.code}: {wrong.message}"
    is_hint = pattern(row.hint).search(wrong.hint) or ("…" in wrong.hint and _begin(row.hint) in wrong.hint)
    assert is_hint, f"{wrong.message}\nhint: {wrong.hint}"
    assert row.mend or row.right != row.wrong or row.environment, "the second command is the first"
    line = row.right.replace(NUMBER, _number(wrong.hint))
    assert follows(wrong.hint, line) or row.mend, f"does not follow: {wrong.hint}"
    assert has_numbers(wrong.hint, row.hint, line), f"has other numbers than: {wrong.hint}"
    if not follow:
        return
    if row.mend is not None:
        row.mend()
    right = run(line, row.stdin)
    assert right.code == row.code, f"exit code {right.code}: {right.message}\nhint: {right.hint}"
    assert right.message != wrong.message or not right.message, f"again: {right.message}"


def follows(hint: str, right: str) -> bool:
    """Return whether the second command has an option of the hint's `add ...`.

    True if the hint adds no option or offers a choice.
    """
    options = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(re.findall(r"\badd `([^`]*)`", hint)))
    return (
        not options
        or re.search("leave|without| or ", hint) is not None
        or any(_has(right, o) for o in options)
    )


def has_numbers(hint: str, template: str, right: str) -> bool:
    """Return whether options with numbers computed by the hint have these numbers in the second command."""
    words = shlex.split(right)
    values = dict(itertools.pairwise(words))
    computed = _COMPUTED.findall(hint)
    numbers = {
        option: [n for o, n in computed if o == option]
        for option, n in computed
        if f"{option} {n}" not in template
    }
    return all(values.get(option) in {None, *choices} for option, choices in numbers.items())


def _number(hint: str) -> str:
    match = _COMPUTED.search(hint)
    return match[2] if match else ""


def _begin(template: str) -> str:
    return template.partition("{}")[0][:40]


def _has(line: str, option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in shlex.split(line))


def chmod(path: str, mode: int) -> None:
    """Set the mode of a file without other hard links."""
    Path(path).chmod(mode)
