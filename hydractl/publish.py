"""How an output reaches its place: whole or not at all.

A regular file is written under a scratch name beside its target and renamed, so a reader never sees half of it
and an interrupted command leaves nothing behind. Pipes, FIFOs and devices cannot be renamed into; they are
written straight through. A symbolic link is followed: the file it points to is replaced, the link stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from hydractl.errors import OutputError, OutputExists

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STDOUT = Path("-")
ITS_NAMES = frozenset(map(Path, ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))


class Sink(Protocol):
    """Something that takes bytes in order."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Take all of `data` and return its length."""
        ...

    def flush(self) -> None:
        """Hand everything to the operating system."""
        ...

    def fileno(self) -> int:
        """Return the descriptor beneath."""
        ...


def is_stream(path: Path) -> bool:
    """Return whether `path` is `-`, a FIFO, a socket or a device: something that takes bytes but no rename."""
    if path == STDOUT:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_stdout(path: Path) -> bool:
    """Return whether `path` is standard output: by one of its names, or as the FIFO that it is."""
    if path in ITS_NAMES:
        return True
    try:
        found = path.stat()
        return stat.S_ISFIFO(found.st_mode) and os.path.samestat(found, os.fstat(1))
    except OSError:
        return False


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
        force: Whether an existing file may be replaced. An input never may.
        inputs: Files that the command reads.
        folders: Folders of which it may read every file.
        option: What names the output on the command line, for hints.

    Raises:
        OutputExists: If `path` is one of `inputs`, or a file in one of `folders`, or exists and `force` is off.
        OutputError: If its folder is missing, or it is a folder itself, or no file can be made there.
    """
    if is_stream(path):
        with _translated(path, ours=set()):
            _check_open(path)
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
            hint=f"name a file in it, for example `{option} {path}/out.st`",
        )
    if target.exists() and not force:
        raise OutputExists(
            f"{path}: already exists",
            hint=f"add `--force` to replace it, or choose another name with `{option}`",
        )
    if not target.parent.is_dir():
        raise OutputError(
            f"{path}: folder `{path.parent}` does not exist", hint=f"create it: `mkdir -p {path.parent}`"
        )
    scratch = _scratch(target)
    # permissions do not tell: root may do all and still makes no file in /proc or on a read-only disk
    with _translated(path, ours={str(scratch)}):
        try:
            scratch.open("xb").close()
        finally:
            scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def publish(path: Path) -> Iterator[Sink]:
    """Open `path` for writing bytes, and publish them only if the block ends well.

    The file gets the mode that the umask allows. `check_output` is the caller's, before the work.

    Args:
        path: Target; `-` is standard output.

    Yields:
        Where to write the bytes, in order.

    Raises:
        OutputError: If the operating system refuses (disk full, no permission).
    """
    target = path.resolve()
    scratch = _scratch(target)
    with _translated(path, ours={str(path), str(target), str(scratch)}):
        if is_stream(path):
            with _stream(path) as file:
                yield file
            return
        try:
            with scratch.open("xb") as file:
                yield file
                file.flush()
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)


def publish_text(path: Path, text: str) -> None:
    """Publish `text` as UTF-8."""
    with publish(path) as file:
        file.write(text.encode())


def _scratch(target: Path) -> Path:
    """Return where a file grows: a random name, short even where the target's is not, that is in nobody's way."""
    return target.with_name(f".{target.name[:32]}.{secrets.token_hex(4)}.part")


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[Sink]:
    if path != STDOUT:
        with path.open("wb") as file:
            yield file
        return
    _check_open(path)
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _check_open(path: Path) -> None:
    """Refuse standard output that was closed before the program began; what stands in for it takes anything."""
    if path == STDOUT and sys.__stdout__ is None:
        raise OSError(errno.EBADF, "standard output is closed")


@contextlib.contextmanager
def _translated(path: Path, *, ours: set[str]) -> Iterator[None]:
    """Turn the operating system's refusals about the *output* into ours; a closed pipe stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None and str(error.filename) not in ours:
            raise  # about some other file, read while this one was open
        if error.errno in FULL:
            raise OutputError(
                f"{path}: no space left to write it; nothing was kept",
                hint="free some space or choose another disk",
            ) from error
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
