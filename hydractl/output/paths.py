"""Paths of outputs: the checks before any work is done."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydractl.errors import OutputError, OutputExists, UsageError
from hydractl.output.publish import (
    STDOUT,
    Folder,
    begin_output,
    check_open,
    check_parent,
    has_content,
    is_stream,
    translated,
)


def output(text: str) -> Path:
    """Parse the path of an output. It is a folder if one exists there, or if the text ends with a slash."""
    path = Path(text)
    if not (text.endswith("/") or path.is_dir()):
        return path
    return Folder(path if path.name not in {"", ".."} else path.resolve())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """The content of an output, which the suffix of its name must match.

    Attributes:
        description: Name of the content in messages.
        suffixes: Valid suffixes. Messages propose the first.
        decides: Whether the suffix selects the format, so that a name needs one.
        streams: Whether standard output and FIFOs are valid.
        binary: Whether the content is binary, so that a terminal is refused.
        hints: Hints for names with other suffixes, with the placeholders `option`, `path` and `fits`.
    """

    description: str
    suffixes: tuple[str, ...]
    decides: bool = False
    streams: bool = True
    binary: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, option: str, path: Path) -> None:
        """Check the name of an output. Suffixes that do not start with a letter, such as `.5`, are ignored.

        Raises:
            UsageError: If the suffix does not match, or a binary output is a terminal.
        """
        if self.binary and path == STDOUT and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError(
                f"`{option} {path}`: {self.description} is a binary file, but standard output is a terminal",
                hint=f"write to a file with `{option} FILE`, or to a pipe: `{option} - | COMMAND`",
            )
        stream, suffix = is_stream(path), path.suffix.lower()
        if suffix in self.suffixes or (stream and self.streams) or is_folder(path):
            return
        if stream or self.decides or suffix[1:2].isalpha():
            stem = path.name.removesuffix(".pth.tar").removesuffix(suffix).strip("-") or "output"
            fits = path.parent / (stem if stem.endswith(self.suffixes) else stem + self.suffixes[0])
            raise UsageError(
                f"`{option} {path}`: {self.description} must have the suffix {' or '.join(self.suffixes)}",
                hint=self.hints.get(suffix, "for example `{option} {fits}`").format(
                    option=option, path=path, fits=fits
                ),
            )


WEIGHTS = OutputKind(description="a model", suffixes=(".st", ".safetensors"), binary=True)
PREDICTIONS = OutputKind(
    description="a set of log-probabilities", suffixes=(".safetensors", ".st"), binary=True
)
DOCUMENT = OutputKind(description="a JSON document", suffixes=(".json",))
REPORT = replace(
    DOCUMENT,
    hints=dict.fromkeys((".html", ".md"), "`{option} {fits}`, and then `hydractl report {fits} -o {path}`"),
)


def is_folder(path: Path) -> bool:
    """Return whether an output is a folder."""
    return isinstance(path, Folder) or path.is_dir()


def check_output(
    path: Path,
    *,
    force: bool,
    inputs: Iterable[Path] = (),
    folders: Iterable[Path] = (),
    option: str = "-o",
) -> None:
    """Check, before any work is done, that an output can and may be written.

    Args:
        path: The output; `-` is standard output.
        force: Whether an existing file may be replaced. An input is never replaced; a file of 0 bytes always may be.
        inputs: Files that the command reads.
        folders: Folders in which the command may read each file.
        option: Option that names the output, for hints.

    Raises:
        OutputExists: If `path` is one of `inputs`, or a file in one of `folders`, or exists and `force` is False.
        OutputError: If the folder does not exist, or `path` is a folder or read-only, or no file can be made there.
    """
    if is_stream(path):
        with translated(path, ours=set()):
            check_open(path)
        return
    try:
        path.stat()
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    target = path.resolve()
    if target.exists() and (
        any(source.exists() and target.samefile(source) for source in inputs)
        or (target.is_file() and any(target.is_relative_to(folder.resolve()) for folder in folders))
    ):
        raise OutputExists(
            f"{path}: is an input of this command", hint=f"choose another name with `{option}`"
        )
    if target.is_dir():
        raise OutputError(
            f"{path}: is a folder, not a file",
            hint=f"give a file in it: `{option} {path}/NAME`",
        )
    if has_content(target) and not force:
        raise OutputExists(
            f"{path}: already exists",
            hint=f"add `--force` to replace it, or choose another name with `{option}`",
        )
    check_parent(path, target)
    # permissions are not enough: root cannot make a file in /proc or on a read-only disk
    with begin_output(path):
        pass


def check_folder(path: Path) -> None:
    """Check that a folder can be made or written to. `check_output` checks files in the folder.

    Raises:
        OutputError: If the parent folder does not exist or is read-only, or a file has the folder's name.
    """
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise OutputError(
            f"{path}: is a file, not a folder", hint="leave out the slash, or choose another name with `-o`"
        )
    check_parent(path, target)
    with begin_output(path / "x") if target.is_dir() else begin_output(path, folder=True):
        pass
