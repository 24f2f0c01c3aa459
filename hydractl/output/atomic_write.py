"""How an output reaches its place: whole or not at all.

A regular file is written under a scratch name beside its target and renamed, so a reader never sees half of it
and an interrupted command leaves nothing behind; what a killed one leaves, the next one that makes the same output removes.
The disk stores each file before it gets its name, and the folder after that: a power loss leaves the old file or the
new one. What is replaced keeps its mode and owner. Pipes, FIFOs and devices cannot be renamed into; they are
written straight through. A symbolic link is followed: the file it points to is replaced, the link stays.

A folder that is not there yet grows under a scratch name likewise; in one that is, its files are replaced one by one, as
those of several outputs are, and others stay.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Protocol

from typing_extensions import override

from hydractl.errors import OutputError, OutputExists
from hydractl.output.locks import OutputLock, keep, remove_dead_parts, scratch_beside
from hydractl.output.sync import has_content, sync, sync_path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STDOUT = Path("-")
ITS_NAMES = frozenset(map(Path, ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))


class Folder(PosixPath):
    """The name of an output that is a folder, be it there yet or not."""


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


class Digested(Sink):
    """A sink that digests what it passes on; `closed` is for those who look before they write."""

    closed = False

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._sha = hashlib.sha256()

    @override
    def write(self, data: bytes | memoryview, /) -> int:
        self._sha.update(data)
        return self._file.write(data)

    @override
    def flush(self) -> None:
        self._file.flush()

    @override
    def fileno(self) -> int:
        return self._file.fileno()

    @property
    def digest(self) -> str:
        """`sha256:...` of what has been written."""
        return f"sha256:{self._sha.hexdigest()}"


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
        status = path.stat()
        return stat.S_ISFIFO(status.st_mode) and os.path.samestat(status, os.fstat(1))
    except OSError:
        return False


def is_terminal(path: Path) -> bool:
    """Return whether `path` is standard output, and that a terminal."""
    return path == STDOUT and sys.stdout is not None and sys.stdout.isatty()


@contextlib.contextmanager
def publish(path: Path, claim: OutputLock | None = None) -> Iterator[Sink]:
    """Open `path` for writing bytes, and publish them only if the block ends well.

    What is replaced hands down its mode and owner; a new file gets the mode that the umask allows. `check_output` is the
    caller's, before the work.

    Args:
        path: Target; `-` is standard output.
        claim: To it, without which it is replaced: that is for what another claim covers.

    Yields:
        Where to write the bytes, in order.

    Raises:
        OutputExists: If another file has got the name meanwhile, and may not be replaced.
        OutputError: If the operating system refuses (disk full, no permission).
    """
    with publish_together(claim or OutputLock(force=True)) as begin:
        yield begin(path)


@contextlib.contextmanager
def publish_together(claim: OutputLock) -> Iterator[Callable[[Path], Sink]]:
    """Open several outputs for writing bytes, and publish all of them if the block ends well, or none.

    A kill between two of them leaves some; the same command then finishes the others. Those in a folder that is not there yet
    appear with it.

    Args:
        claim: To the first of them; knows what may be replaced, and remembers what is published.

    Yields:
        What opens one, as `publish` does.

    Raises:
        OutputExists: If another file has one's name, and may not be replaced.
        OutputError: If the operating system refuses.
    """
    with contextlib.ExitStack() as stack:
        grown: list[TempFile] = []
        folders: dict[Path, TempFolder] = {}

        def begin(path: Path) -> Sink:
            folder = path.parent
            if isinstance(folder, Folder) and not folder.exists():
                if folder not in folders:
                    folders[folder] = stack.enter_context(temp_folder(folder))
                return stack.enter_context(folders[folder].file(path.name))
            grown.append(stack.enter_context(temp_file(path)))
            return grown[-1].file

        yield begin
        unpublished: list[TempFolder | TempFile] = [
            *folders.values(),
            *(output for output in grown if claim.force or not output.is_there()),
        ]
        publish_scratch(unpublished, claim)


def publish_scratch(outputs: Collection[TempFile | TempFolder], claim: OutputLock) -> None:
    """Store outputs on the disk, then give them their names. Streams are flushed.

    The outputs are still locked, so no other command takes them for files of a killed command.

    Args:
        outputs: Complete outputs.
        claim: Records the names of several outputs before the first one gets its name.

    Raises:
        OSError: If the disk fails.
    """
    for output in outputs:
        output.store()
    renames = {output.target: output.scratch for output in outputs if output.scratch}
    claim.publishing(renames)
    for target, scratch in renames.items():
        scratch.replace(target)
    for folder in {target.parent for target in renames}:
        sync_path(folder)
    claim.published()


def make_folder(folder: Path, *, hint: str | None = None) -> None:
    """Make a folder, and those that it is in, where there is none.

    Raises:
        OutputError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}", hint=hint) from error


def publish_text(path: Path, text: str, claim: OutputLock | None = None) -> None:
    """Publish `text` as UTF-8; see `publish`."""
    with publish(path, claim) as file:
        file.write(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class TempFile:
    """An output that is being written, under a scratch name unless it is a stream."""

    path: Path
    target: Path
    scratch: Path | None
    file: Sink

    def is_there(self) -> bool:
        """Return whether the output is there already, byte by byte.

        Raises:
            OutputExists: If another file is.
        """
        self.file.flush()
        if self.scratch is None or not has_content(self.target):
            return False
        if not filecmp.cmp(self.scratch, self.target, shallow=False):
            raise OutputExists(
                f"{self.path}: already exists with other content; nothing was written",
                hint="add `--force` to replace it, or choose another name",
            )
        return True

    def store(self) -> None:
        """Store the file on the disk; flush a stream."""
        self.file.flush()
        if self.scratch is not None:
            sync(self.file.fileno())


@dataclass(frozen=True, slots=True, kw_only=True)
class TempFolder:
    """A folder that is being filled under a scratch name."""

    path: Path
    target: Path
    scratch: Path
    files: list[Sink]

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Open a file of that name in it."""
        with (self.scratch / name).open("xb") as file:
            self.files.append(file)
            yield file

    def store(self) -> None:
        """Store the folder on the disk, with all files in it."""
        for file in self.files:
            file.flush()
        for path in (*self.scratch.rglob("*"), self.scratch):
            sync_path(path)


@contextlib.contextmanager
def temp_folder(path: Path) -> Iterator[TempFolder]:
    """Make a folder; it goes at the end of the block unless it was published."""
    target = path.resolve()
    remove_dead_parts(target)
    locked = False
    while not locked:
        scratch = scratch_beside(target)
        with translated(path, ours={str(path), str(target), str(scratch)}), contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            scratch.mkdir()
            with contextlib.suppress(FileNotFoundError):  # another command took it for a dead one's
                descriptor = os.open(scratch, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                locked = keep(descriptor, scratch)
            if locked:
                yield TempFolder(path=path, target=target, scratch=scratch, files=[])


@contextlib.contextmanager
def temp_file(path: Path) -> Iterator[TempFile]:
    """Open an output; what is not published by the end of the block goes."""
    target = path.resolve()
    if is_stream(path):
        with translated(path, ours={str(path), str(target)}), _stream(path) as file:
            yield TempFile(path=path, target=target, scratch=None, file=file)
        return
    remove_dead_parts(target)
    locked = False
    while not locked:
        scratch = scratch_beside(target)
        with translated(path, ours={str(path), str(target), str(scratch)}):
            try:
                with scratch.open("xb") as file:
                    locked = keep(file.fileno(), scratch)
                    if not locked:
                        continue  # another command came before the lock, and took it for a dead one's
                    if target.is_file():
                        _take_after(path, target, file.fileno())
                    yield TempFile(path=path, target=target, scratch=scratch, file=file)
            finally:
                scratch.unlink(missing_ok=True)


def _take_after(path: Path, target: Path, descriptor: int) -> None:
    """Give a new file the mode and owner of the one that it is to replace.

    Raises:
        OutputError: If that is read-only for its owner, or its owner cannot be kept.
    """
    old, new = target.stat(), os.fstat(descriptor)
    if not old.st_mode & stat.S_IWUSR:
        raise OutputError(f"{path}: is read-only", hint=f"`chmod u+w {path}`, or choose another name")
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError as error:
            raise OutputError(
                f"{path}: belongs to another user or group, which a replacement cannot keep",
                hint="choose another name",
            ) from error
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[Sink]:
    if path != STDOUT:
        with path.open("wb") as file:
            yield file
        return
    check_open(path)
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def check_open(path: Path) -> None:
    """Refuse standard output that was closed before the program began; what stands in for it takes anything."""
    if path == STDOUT and sys.__stdout__ is None:
        raise OSError(errno.EBADF, "standard output is closed")


def append(path: Path, data: bytes) -> None:
    """Add to a journal, and see it on the disk.

    Raises:
        OutputError: If the operating system refuses; what the journal had stays good.
    """
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint="the progress is saved; the same command resumes it",
        ) from error


@contextlib.contextmanager
def translated(path: Path, *, ours: set[str]) -> Iterator[None]:
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
                f"{path}: no space left on the disk; nothing was written",
                hint="free some space or use another disk",
            ) from error
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
