"""Publication of complete outputs, and checks of their paths before any work.

A regular file is written under a scratch name in the folder of its target, then renamed. Readers never see a
part of a file, and an interrupted command leaves no files. The next command with the same output removes the
scratch files of a killed command. A file is stored on the disk before the rename, and its folder after the
rename: a power loss leaves the old file or the new file. A replacement has the mode and owner of the old
file. Pipes, FIFOs and devices are written directly, because a rename would replace them. A symbolic link
stays, and the file behind the link is replaced.

A new folder is also written under a scratch name. In an existing folder, files are replaced one by one, and
other files stay.

A lock (`flock`) on a scratch file or folder distinguishes outputs of running commands from outputs of killed
commands. The system releases the locks of a killed process, so clocks are not needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PosixPath
from typing import Protocol

from typing_extensions import override

from hydractl import progress
from hydractl.errors import OutputError, OutputExists, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STDOUT = Path("-")
_STDOUT_NAMES = frozenset(map(Path, ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")))
_PART = re.compile(r"\..*\.[0-9a-f]{8}\.hydractl-part", re.DOTALL)
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
"""Errors of file systems without `fsync` for folders or files."""
_STEM = 32
"""Number of characters of a long output name that are kept in scratch names. Chosen by hand to keep scratch
names below 255 bytes in any encoding; with twice the number, names in 4-byte characters exceed 255 bytes."""


class Folder(PosixPath):
    """Path of an output that is a folder, existing or not."""


class Sink(Protocol):
    """Writable binary file."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of `data` and return the number of bytes."""
        ...

    def flush(self) -> None:
        """Pass all written bytes to the operating system."""
        ...

    def fileno(self) -> int:
        """Return the file descriptor."""
        ...


class Digested(Sink):
    """Sink that passes bytes on and computes their digest. Some writers read the attribute `closed`."""

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
        """`sha256:...` of the written bytes."""
        return f"sha256:{self._sha.hexdigest()}"


def is_stream(path: Path) -> bool:
    """Return whether `path` is `-`, a FIFO, a socket or a device: a rename would replace these."""
    if path == STDOUT:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_stdout(path: Path) -> bool:
    """Return whether `path` is standard output: a name like `-`, or the FIFO of standard output."""
    if path in _STDOUT_NAMES:
        return True
    try:
        status = path.stat()
        return stat.S_ISFIFO(status.st_mode) and os.path.samestat(status, os.fstat(1))
    except OSError:
        return False


def has_content(path: Path) -> bool:
    """Return whether an output exists. A file of 0 bytes, left by a power loss, counts as missing."""
    return path.exists() and (not path.is_file() or path.stat().st_size > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOutput:
    """Output during its creation.

    Attributes:
        path: Path in the command.
        target: Path with links resolved.
        scratch: Path of the file or folder before publication. Equals `target` for a stream.
        files: Open files: the output, or files in the folder.
    """

    path: Path
    target: Path
    scratch: Path
    files: list[Sink]

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Open a new file in the folder."""
        with (self.scratch / name).open("xb") as file:
            self.files.append(file)
            yield file

    def is_published(self) -> bool:
        """Return whether a file with the same bytes exists already.

        Raises:
            OutputExists: If a file with other bytes exists.
        """
        if self.scratch == self.target or self.scratch.is_dir() or not has_content(self.target):
            return False
        self.files[0].flush()
        if not filecmp.cmp(self.scratch, self.target, shallow=False):
            raise OutputExists(
                f"{self.path}: already exists with other content; nothing was written",
                hint="add `--force` to replace it, or choose another name",
            )
        return True

    def store(self) -> None:
        """Wait until the disk stores the output. A stream is only flushed.

        Raises:
            OSError: If the disk fails.
        """
        for file in self.files:
            file.flush()
            if self.scratch != self.target:
                sync(file.fileno())
        if self.scratch.is_dir():
            for path in (*self.scratch.rglob("*"), self.scratch):
                sync_path(path)


@contextlib.contextmanager
def begin_output(path: Path, *, folder: bool = False) -> Iterator[PendingOutput]:
    """Open an output under a scratch name. Without publication, it is removed at the end of the block.

    Args:
        path: The output.
        folder: Whether to create a folder.

    Raises:
        OutputError: If the operating system refuses, or an existing file is read-only.
    """
    target = path.resolve()
    if not folder and is_stream(path):
        with translated(path, ours={str(path), str(target)}), _open_stream(path) as file:
            yield PendingOutput(path=path, target=target, scratch=target, files=[file])
        return
    remove_dead_parts(target)
    locked = False
    while not locked:
        scratch = scratch_beside(target)
        with translated(path, ours={str(path), str(target), str(scratch)}), contextlib.ExitStack() as stack:
            stack.callback(_remove, scratch)
            files: list[Sink] = []
            if folder:
                scratch.mkdir()
                try:
                    descriptor = os.open(scratch, os.O_RDONLY)
                except FileNotFoundError:
                    continue
                stack.callback(os.close, descriptor)
            else:
                files = [stack.enter_context(scratch.open("xb"))]
                descriptor = files[0].fileno()
            # before the lock, another command may have removed the scratch file, in the belief of a killed
            # command
            if locked := lock_new(descriptor, scratch):
                if files and target.is_file():
                    _copy_mode(path, target, descriptor)
                yield PendingOutput(path=path, target=target, scratch=scratch, files=files)


def _copy_mode(path: Path, target: Path, descriptor: int) -> None:
    """Copy the mode and owner of an existing file to its replacement.

    Raises:
        OutputError: If the owner may not write the existing file, or the owner cannot be copied.
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
def _open_stream(path: Path) -> Iterator[Sink]:
    if path != STDOUT:
        with path.open("wb") as file:
            yield file
        return
    check_open(path)
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def check_open(path: Path) -> None:
    """Raise if `path` is `-` and standard output was closed at the start of the program.

    Python's replacement for a closed standard output accepts and discards all bytes.

    Raises:
        OSError: With `errno.EBADF`.
    """
    if path == STDOUT and sys.__stdout__ is None:
        raise OSError(errno.EBADF, "standard output is closed")


@contextlib.contextmanager
def translated(path: Path, *, ours: set[str]) -> Iterator[None]:
    """Convert system errors about the outputs `ours` to `OutputError`, except `BrokenPipeError`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None and str(error.filename) not in ours:
            raise
        if error.errno in FULL:
            raise OutputError(
                f"{path}: no space left on the disk; nothing was written",
                hint="free some space or use another disk",
            ) from error
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


# publication


@contextlib.contextmanager
def publish_together(claim: OutputLock) -> Iterator[Callable[[Path], Sink]]:
    """Open several outputs for writing, and publish all of them after a block without errors.

    A kill between two renames leaves only some outputs. The same command then publishes the remaining ones.
    Files in a new folder appear together with the folder.

    Args:
        claim: Lock of the first output.

    Yields:
        Function that opens one output.

    Raises:
        OutputExists: If an output exists with other content, and may not be replaced.
        OutputError: If the operating system refuses (disk full, no permission).
    """
    with contextlib.ExitStack() as stack:
        outputs: dict[Path, PendingOutput] = {}

        def begin(path: Path) -> Sink:
            folder = path.parent
            if isinstance(folder, Folder) and not folder.exists():
                if folder not in outputs:
                    outputs[folder] = stack.enter_context(begin_output(folder, folder=True))
                return stack.enter_context(outputs[folder].file(path.name))
            outputs[path] = stack.enter_context(begin_output(path))
            return outputs[path].files[0]

        yield begin
        # publish while the outputs are locked: other commands remove unlocked scratch files
        _publish([output for output in outputs.values() if claim.force or not output.is_published()], claim)


def _publish(outputs: Collection[PendingOutput], claim: OutputLock) -> None:
    """Store outputs on the disk, then rename them.

    The lock records the names of several outputs before the first rename.
    """
    for output in outputs:
        output.store()
    renames = {output.target: output.scratch for output in outputs if output.scratch != output.target}
    claim.begin_renames(renames)
    for target, scratch in renames.items():
        scratch.replace(target)
    for folder in {target.parent for target in renames}:
        sync_path(folder)
    claim.end_renames()


@contextlib.contextmanager
def publish(path: Path) -> Iterator[Sink]:
    """Open an output for writing; see `publish_together`.

    A new file has the mode given by the umask.

    Args:
        path: The output, which may exist. `-` is standard output.
    """
    with publish_together(OutputLock(force=True)) as begin:
        yield begin(path)


def publish_text(path: Path, text: str) -> None:
    """Publish `text` as UTF-8; see `publish`."""
    with publish(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def publish_folder(path: Path) -> Iterator[Path]:
    """Create a folder under a scratch name, yield it, and publish the folder after a block without errors.

    Raises:
        OutputError: If the operating system refuses.
    """
    with begin_output(path, folder=True) as output:
        yield output.scratch
        _publish([output], OutputLock(force=True))


def make_folder(folder: Path, *, hint: str | None = None) -> None:
    """Create a folder and its missing parents.

    Raises:
        OutputError: If the operating system refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}", hint=hint) from error


def sync(descriptor: int) -> None:
    """Wait until an open file, or the names in an open folder, are stored on the disk.

    Raises:
        OSError: If the disk fails.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_path(path: Path) -> None:
    """Wait until a file or folder is stored on the disk. Paths without permission are skipped.

    Raises:
        OSError: If the disk fails.
    """
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def scratch_beside(target: Path) -> Path:
    """Return a random scratch name in the folder of `target`."""
    return target.with_name(f"{_prefix(target)}{secrets.token_hex(4)}.hydractl-part")


def _prefix(target: Path) -> str:
    """Return `.NAME.`, the prefix of names derived from `target`; for a long name, its start and a digest."""
    name = target.name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{name}." if len(name) <= _STEM else f".{name[:_STEM]}-{digest[:16]}."


def lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file or folder.

    Args:
        descriptor: Open file or folder.
        path: Path of the file or folder.
        wait: Whether to wait for the lock.

    Returns:
        Whether this process holds the lock and `path` still refers to the locked file.

    Raises:
        OSError: If the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


def lock_new(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder, if the file system has locks.

    Returns:
        False if another process removed the file first.
    """
    try:
        return lock(descriptor, path, wait=True)
    except OSError:
        return True


def remove_dead(paths: Iterable[Path]) -> None:
    """Remove files and folders without a lock. Errors are ignored."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if lock(descriptor, path):
                    _remove(path)
            finally:
                os.close(descriptor)


def remove_dead_parts(target: Path) -> None:
    """Remove the scratch files of `target` left by killed commands."""
    with contextlib.suppress(OSError), os.scandir(target.parent) as scanned:
        names = [e.name for e in scanned if e.name.startswith(_prefix(target)) and _PART.fullmatch(e.name)]
        remove_dead(target.with_name(name) for name in names)


def _remove(path: Path) -> None:
    """Remove a file or folder, existing or not."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _file_identity(path: Path) -> list[int] | None:
    """Return device, inode, size and time of a file, a combination that stays unique. None without a file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    return None


class OutputLock:
    """Exclusive right of a command to write some outputs.

    Before several files are renamed, the lock file records their names. After a kill between two renames, the
    next command finds the outputs of the killed command in the lock file.
    """

    def __init__(self, descriptor: int | None = None, path: Path | None = None, *, force: bool) -> None:
        """Take over an open and locked file.

        Args:
            descriptor: The lock file. None without a lock.
            path: Path of the lock file.
            force: Whether existing files may be replaced.
        """
        self.force = force
        self._descriptor = descriptor
        self._path = path
        self._unfinished: dict[str, list[int]] = {}
        if descriptor is not None:
            recorded = _read_record(descriptor).get("left")
            for name, identity in recorded.items() if isinstance(recorded, dict) else ():
                if identity == _file_identity(self._folder / name):
                    self._unfinished[name] = identity
            self._write()

    def may_replace(self, path: Path) -> bool:
        """Return whether `path` may exist: because of `--force`, or as an output of a killed command."""
        return self.force or self._unfinished.get(self._name(path), ()) == _file_identity(path)

    def begin_renames(self, files: Mapping[Path, Path]) -> None:
        """Record several outputs before their renames.

        Args:
            files: Scratch file of each target.
        """
        if self._descriptor is not None and len(files) > 1:
            for target, scratch in files.items():
                if (identity := _file_identity(scratch)) is not None:
                    self._unfinished[self._name(target)] = identity
            self._write()
            sync(self._descriptor)
            sync_path(self._folder)

    def end_renames(self) -> None:
        """Forget the recorded outputs. The lock file keeps the record until `release` removes the file."""
        self._unfinished = {}

    def release(self) -> None:
        """Release the lock, and remove the lock file unless outputs are unfinished."""
        if self._descriptor is not None and self._path is not None:
            if not self._unfinished:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)

    @property
    def _folder(self) -> Path:
        return Path() if self._path is None else self._path.parent

    def _name(self, path: Path) -> str:
        return os.path.relpath(os.path.realpath(path), self._folder)

    def _write(self) -> None:
        if self._descriptor is not None:
            record = {"host": socket.gethostname(), "pid": os.getpid(), "left": self._unfinished}
            os.pwrite(self._descriptor, (json.dumps(record) + "\n").encode(), 0)


def _read_record(descriptor: int) -> dict[str, object]:
    """Return the record in a lock file.

    Only the first line is read, because remains of a longer earlier record may follow.
    """
    with contextlib.suppress(ValueError):
        record = json.loads(os.pread(descriptor, 1 << 20, 0).split(b"\n")[0])
        return record if isinstance(record, dict) else {}
    return {}


@contextlib.contextmanager
def claimed(out: Path | None, *, force: bool, wait: bool | None = None) -> Iterator[OutputLock]:
    """Hold the lock of an output while the block runs.

    Args:
        out: The output, the first of several. None locks nothing.
        force: Whether existing files may be replaced.
        wait: Whether to wait for a command that holds the lock. None if the command has no option `--wait`.

    Raises:
        OutputExists: If another command holds the lock, and `wait` is not True.
        OutputError: If the folder cannot be written.
    """
    claim = OutputLock(force=force)
    if out is not None:
        target = Path(os.path.realpath(out))
        path = target.with_name(f"{_prefix(target)}hydractl-lock")
        claim = OutputLock(_acquire(out, path, wait=wait), path, force=force)
    try:
        yield claim
    finally:
        claim.release()


def _acquire(out: Path, path: Path, *, wait: bool | None) -> int | None:
    """Create and lock a lock file. Returns the descriptor, or None if the file system has no locks."""
    announced = False
    while True:
        check_parent(out, path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise OutputError(f"{out}: cannot be written: {os.strerror(error.errno or 0)}") from error
        try:
            if lock(descriptor, path, wait=announced):
                return descriptor
            if not announced and os.fstat(descriptor).st_nlink:
                _announce_wait(out, _read_record(descriptor), wait=wait)
                announced = True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            progress.warn(
                f"{path.parent}: the file system has no locks; make sure that no other command "
                f"writes {out} at the same time"
            )
            path.unlink(missing_ok=True)
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def check_parent(path: Path, target: Path) -> None:
    """Check that the folder of an output exists.

    Args:
        path: The output, for the message.
        target: The output with links resolved, or a path in the same folder.

    Raises:
        OutputError: If the folder does not exist.
    """
    if not target.parent.is_dir():
        raise OutputError(
            f"{path}: folder `{path.parent}` does not exist", hint=f"create it: `mkdir -p {path.parent}`"
        )


def _announce_wait(out: Path, holder: Mapping[str, object], *, wait: bool | None) -> None:
    """Report the process with the lock of an output.

    Raises:
        OutputExists: If this command does not wait.
    """
    holder_text = (
        f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "a process"
    )
    if not wait:
        ways = "wait for it with `--wait`" if wait is not None else "wait until it ends"
        raise OutputExists(
            f"{out}: {holder_text} is writing it now", hint=f"{ways}, or choose another name with `-o`"
        )
    progress.step(f"Waiting for {holder_text}, which is writing {out}")


def output(text: str) -> Path:
    """Parse the path of an output: a `Folder` for a folder, otherwise a `Path`.

    The path is a folder if a folder exists there, or if the text ends with a slash.
    """
    path = Path(text)
    if not (text.endswith("/") or path.is_dir()):
        return path
    return Folder(path if path.name not in {"", ".."} else path.resolve())


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """Type of content of an output, with the required suffix.

    Attributes:
        description: Name of the content in messages.
        suffixes: Valid suffixes. Messages propose the first.
        decides: Whether the suffix selects the format, and is therefore required.
        streams: Whether standard output and FIFOs are valid.
        binary: Whether the content is binary. Binary content is not written to a terminal.
        hints: Hints for names with other suffixes, with the placeholders `option`, `path` and `fits`.
    """

    description: str
    suffixes: tuple[str, ...]
    decides: bool = False
    streams: bool = True
    binary: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, option: str, path: Path) -> None:
        """Check the name of an output. Suffixes without a letter at the start, like `.5`, are ignored.

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
    """Check, before any work, whether an output can and may be written.

    Args:
        path: The output. `-` is standard output.
        force: Whether an existing file may be replaced. An input is never replaced; a file of 0 bytes always
            may be.
        inputs: Files read by the command.
        folders: Folders from which the command may read any file.
        option: Option of the output, for hints.

    Raises:
        OutputExists: If `path` is an input or a file in `folders`, or exists and `force` is False.
        OutputError: If the folder does not exist, or `path` is a folder or read-only, or files cannot be
            created there.
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
    # create a file, because permissions are not enough: root cannot create files in /proc or on a read-only
    # disk
    with begin_output(path):
        pass


def check_folder(path: Path) -> None:
    """Check that a folder can be created or written to. `check_output` checks files in the folder.

    Raises:
        OutputError: If the parent folder does not exist or is read-only, or `path` is a file.
    """
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise OutputError(
            f"{path}: is a file, not a folder", hint="leave out the slash, or choose another name with `-o`"
        )
    check_parent(path, target)
    with begin_output(path / "x") if target.is_dir() else begin_output(path, folder=True):
        pass
