"""Worker processes that decode images: one crew, shared by all data sets that a command reads. Importing this module does not load torch.

They are forked by a server that has loaded the libraries and nothing else: a fork of this process, with its threads of OpenMP
and CUDA, may hang where it waits for one of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, resource_tracker
from types import ModuleType
from typing import ClassVar, ParamSpec, TypeVar

from hydractl.errors import InputError, reason_of
from hydractl.processes.distributed import local_world_size
from hydractl.processes.signals import told_to_end

P = ParamSpec("P")
T = TypeVar("T")
MOST = 8
"""Maximum number of workers with `auto`."""
MANY = 4096
"""Number of images from which the start-up time of workers pays off."""
SPARE = 2
"""Number of cores that threads can keep busy in spite of the interpreter lock."""
SHARED_BYTES = 1 << 30
"""Shared memory that `auto` requires, in bytes."""
DEAF_TO = {signal.SIGINT, signal.SIGHUP}
_SHARED = "/dev/shm"  # noqa: S108 - not a place for scratch files: what the system shares memory through
_LOADED = [
    "hydractl.data.batches",
    "hydractl.data.sources.columns",
    "hydractl.data.sources.folder",
    "timm.data",
]


def unshared(error: Exception) -> InputError:
    """Return the refusal of processes that find no memory to hand over batches in, for this reason."""
    return InputError(
        f"processes that decode images cannot share memory in `{_SHARED}`: {reason_of(error)}",
        hint=f"add `--num-workers 0`, or let the machine share more memory (`df {_SHARED}`)",
    )


class WorkerPool:
    """So many worker processes, which start at once and end when nothing refers to the crew any more, or this process ends."""

    _living: ClassVar[weakref.WeakValueDictionary[int, WorkerPool]] = weakref.WeakValueDictionary()

    def __init__(self, workers: int) -> None:
        """Start them.

        Raises:
            InputError: If processes cannot share memory here.
        """
        self.workers = workers
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        with _isolated_start():
            forkserver.ensure_running()  # loads while this process does something else
            try:
                self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
            except OSError as error:
                raise unshared(error) from error
        # waits: a program that ends meanwhile may write to a pipe that the thread of the pool is closing (EBADF)
        weakref.finalize(self, self._pool.shutdown, wait=True, cancel_futures=True)

    @classmethod
    def of(cls, workers: int | None, *, images: int) -> WorkerPool | None:
        """Return who decodes a set, the same crew for several of them; None for threads of this process.

        Args:
            workers: How many there are to be, 0 for none; None for what pays.
            images: How many there are to decode.

        Raises:
            InputError: If processes cannot share memory here.
        """
        count = paying(images) if workers is None else workers
        return (cls._living.get(count) or cls._living.setdefault(count, cls(count))) if count else None

    def submit(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Have a worker do it.

        Raises:
            InputError: If a worker has ended before its time.
        """
        with self._watched(), _isolated_start():  # which may start one
            return self._pool.submit(work, *args, **named)

    def result(self, future: Future[T]) -> T:
        """Return what came of it; raises as `submit`."""
        with self._watched():
            return future.result()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            type(self)._living.pop(self.workers, None)
            if told_to_end():  # so were they
                raise KeyboardInterrupt from error
            raise InputError(
                f"one of {self.workers} processes that decode images was killed, perhaps because memory ran out",
                hint=f"add `--num-workers 0`, or let the machine share more memory (`df {_SHARED}`)",
            ) from error


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def paying(images: int) -> int:
    """Return how many workers pay: none for few images, or where threads can keep all cores busy."""
    cores_per_process = cores() // local_world_size()
    if images < MANY or cores_per_process <= SPARE or not hasattr(os, "fork"):
        return 0
    with contextlib.suppress(OSError):
        shared = os.statvfs(_SHARED)
        if shared.f_flag & os.ST_RDONLY or shared.f_bavail * shared.f_frsize < SHARED_BYTES:
            return 0
    return min(MOST, cores_per_process)


@contextlib.contextmanager
def _isolated_start() -> Iterator[None]:
    """Let what starts know nothing of the running program, which need not be guarded against being run again, nor of Ctrl-C.

    That reaches all processes of a terminal, and is this one's to answer; the others inherit that they are deaf to it.
    """
    resource_tracker.ensure_running()  # which would hear again what is blocked now, if it started later
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Make a worker of a process: it ends with the process that it works for."""
    signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)  # where the server was there before
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)
