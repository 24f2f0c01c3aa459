"""Where an output may go: what is refused before any work is done."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydractl.errors import OutputError, OutputExists, UsageError
from hydractl.output.atomic_write import (
    Folder,
    check_open,
    is_stream,
    is_terminal,
    temp_file,
    temp_folder,
    translated,
)
from hydractl.output.sync import has_content


def output(text: str) -> Path:
    """Read the name of an output that may be a folder: one is there, or a slash says so."""
    path = Path(text)
    if not (text.endswith("/") or path.is_dir()):
        return path
    return Folder(path if path.name not in {"", ".."} else path.resolve())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """What an output holds, which its name must not contradict.

    Attributes:
        description: In words, for messages.
        suffixes: How the names of such files end; the first is proposed.
        decides: Whether the suffix decides the form, and none will not do.
        streams: Whether it may go to standard output or a FIFO.
        binary: Whether it is no text, which a terminal would show as such.
        hints: What to type for a name that ends otherwise, told the option, the name and one that fits.
    """

    description: str
    suffixes: tuple[str, ...]
    decides: bool = False
    streams: bool = True
    binary: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, option: str, path: Path) -> None:
        """Refuse a name that says something else, and a terminal for what is no text; an ending such as `.5` says nothing.

        Raises:
            UsageError: With a name that fits.
        """
        if self.binary and is_terminal(path):
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
    """Refuse an output that cannot or must not be written, before any work is done.

    Args:
        path: Where the output will go; `-` is standard output.
        force: Whether an existing file may be replaced. An input never may; a file of 0 bytes always may.
        inputs: Files that the command reads.
        folders: Folders of which it may read every file.
        option: What names the output on the command line, for hints.

    Raises:
        OutputExists: If `path` is one of `inputs`, or a file in one of `folders`, or exists and `force` is off.
        OutputError: If its folder is missing, or it is a folder itself or read-only, or no file can be made there.
    """
    if is_stream(path):
        with translated(path, ours=set()):
            check_open(path)
        return
    try:
        path.stat()
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:  # what else there is to say is said below
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
    _check_parent(path, target)
    # permissions do not tell: root may do all and still makes no file in /proc or on a read-only disk
    with temp_file(path):
        pass


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written to; what of its files may be replaced is `check_output`'s.

    Raises:
        OutputError: If the folder that it lies in is missing or read-only, or a file has its name.
    """
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise OutputError(
            f"{path}: is a file, not a folder", hint="leave out the slash, or choose another name with `-o`"
        )
    _check_parent(path, target)
    with temp_file(path / "x") if target.is_dir() else temp_folder(path):
        pass


def _check_parent(path: Path, target: Path) -> None:
    if not target.parent.is_dir():
        raise OutputError(
            f"{path}: folder `{path.parent}` does not exist", hint=f"create it: `mkdir -p {path.parent}`"
        )
