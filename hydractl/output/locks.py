"""Who works on what: locks that a kill releases, so that what the dead left behind is told from what is being made.

A lock is the system's own (`flock`), on a file or folder whose name hydractl alone gives; no clock is asked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hydractl.errors import OutputError, OutputExists
from hydractl.output.sync import sync, sync_path
from hydractl.progress import SILENT, Progress

_PART = re.compile(r"\..*\.[0-9a-f]{8}\.hydractl-part", re.DOTALL)
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_STEM = 32


def scratch_beside(target: Path) -> Path:
    """Return where what becomes `target` may grow: a random name that is in nobody's way."""
    return target.with_name(f"{_begin(target)}{secrets.token_hex(4)}.hydractl-part")


def _begin(target: Path) -> str:
    """Return how names made of another one begin: short where that is not, and of no other one."""
    name = target.name
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{name}." if len(name) <= _STEM else f".{name[:_STEM]}-{digest[:16]}."


def lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Return whether this process now holds what it has open, and what it has open is what `path` still names.

    Raises:
        OSError: If the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


def keep(descriptor: int, path: Path) -> bool:
    """Lock what this process has just made, where there are locks; return False if it was taken for a dead one's before."""
    try:
        return lock(descriptor, path, wait=True)
    except OSError:
        return True


def remove_dead(paths: Iterable[Path]) -> None:
    """Remove those files and folders that nobody holds; what cannot be told or removed stays."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if lock(descriptor, path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(descriptor)


def remove_dead_parts(target: Path) -> None:
    """Remove what commands that were killed left of `target`."""
    with contextlib.suppress(OSError), os.scandir(target.parent) as scanned:
        mine = [e.name for e in scanned if e.name.startswith(_begin(target)) and _PART.fullmatch(e.name)]
        remove_dead(target.with_name(name) for name in mine)


def _file_identity(path: Path) -> list[int] | None:
    """Return what tells a file from all that were or will be made; None where there is none."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    return None


class OutputLock:
    """The right to make some outputs, which one command has at a time.

    Before several files get their names, the claim writes down which they are. If a kill comes in between, the next command
    finds there which of them are its own.
    """

    def __init__(self, descriptor: int | None = None, path: Path | None = None, *, force: bool) -> None:
        """Hold a lock; or nothing, where there is nothing to hold."""
        self.force = force
        self._descriptor = descriptor
        self._path = path
        self._unfinished: dict[str, list[int]] = {}
        if descriptor is not None:
            recorded = _written(descriptor).get("left")
            unfinished = recorded if isinstance(recorded, dict) else {}
            self._unfinished = {
                name: identity
                for name, identity in unfinished.items()
                if identity == _file_identity(Path(self._within(), name))
            }
            self._write()

    def may_replace(self, path: Path) -> bool:
        """Return whether `path` may be there: by force, or as one of several that a killed command published."""
        return self.force or path in self

    def __contains__(self, path: Path) -> bool:
        return self._unfinished.get(self._name(path), ()) == _file_identity(path)

    def publishing(self, files: Mapping[Path, Path]) -> None:
        """Write down which files are about to get their names, by these."""
        if self._descriptor is not None and len(files) > 1:
            identities = {self._name(target): _file_identity(scratch) for target, scratch in files.items()}
            self._unfinished |= {
                name: identity for name, identity in identities.items() if identity is not None
            }
            self._write()
            sync(self._descriptor)
            sync_path(Path(self._within()))

    def published(self) -> None:
        """Forget it: all of them are there."""
        self._unfinished = {}

    def release(self) -> None:
        """Let others have it; what is left half published stays written down."""
        if self._descriptor is not None and self._path is not None:
            if not self._unfinished:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)

    def _within(self) -> str:
        return str(self._path and self._path.parent)

    def _name(self, path: Path) -> str:
        return os.path.relpath(os.path.realpath(path), self._within())

    def _write(self) -> None:
        if self._descriptor is None:
            return
        record = {"host": socket.gethostname(), "pid": os.getpid(), "left": self._unfinished}
        os.pwrite(self._descriptor, (json.dumps(record) + "\n").encode(), 0)


def _written(descriptor: int) -> dict[str, object]:
    """Return what a claim's file says: its first line, for a longer one may have stood there."""
    with contextlib.suppress(ValueError):
        record = json.loads(os.pread(descriptor, 1 << 20, 0).split(b"\n")[0])
        return record if isinstance(record, dict) else {}
    return {}


@contextlib.contextmanager
def claimed(
    out: Path | None, *, force: bool, wait: bool | None = None, progress: Progress = SILENT
) -> Iterator[OutputLock]:
    """Have an output to oneself as long as the block runs.

    Args:
        out: The output; of several the first. None claims nothing.
        force: Whether what is there already may be replaced.
        wait: Whether to wait for another command that makes it; None where the user was not asked.
        progress: Hears for whom.

    Raises:
        OutputExists: If another command makes it now, and this one does not wait.
        OutputError: If its folder cannot be written.
    """
    claim = OutputLock(force=force)
    if out is not None:
        target = Path(os.path.realpath(out))
        path = target.with_name(f"{_begin(target)}hydractl-lock")
        claim = OutputLock(_acquire(out, path, wait=wait, progress=progress), path, force=force)
    try:
        yield claim
    finally:
        claim.release()


def _acquire(out: Path, path: Path, *, wait: bool | None, progress: Progress) -> int | None:
    """Return the descriptor of a claim's file, which is locked; None where there are no locks."""
    announced = False
    while True:
        descriptor = _opened(out, path)
        try:
            if lock(descriptor, path, wait=announced):
                return descriptor
            if not announced and os.fstat(descriptor).st_nlink:
                announced = _announce_wait(out, _written(descriptor), wait=wait, progress=progress)
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


def _opened(out: Path, path: Path) -> int:
    if not path.parent.is_dir():
        raise OutputError(
            f"{out}: folder `{out.parent}` does not exist", hint=f"create it: `mkdir -p {out.parent}`"
        )
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise OutputError(f"{out}: cannot be written: {os.strerror(error.errno or 0)}") from error


def _announce_wait(out: Path, holder: Mapping[str, object], *, wait: bool | None, progress: Progress) -> bool:
    """Say who holds an output, if one is to wait for it."""
    holder_text = (
        f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "a process"
    )
    if not wait:
        ways = "wait for it with `--wait`" if wait is not None else "wait until it ends"
        raise OutputExists(
            f"{out}: {holder_text} is writing it now", hint=f"{ways}, or choose another name with `-o`"
        )
    progress.step(f"Waiting for {holder_text}, which is writing {out}")
    return True
