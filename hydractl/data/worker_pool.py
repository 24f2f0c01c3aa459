"""Worker processes that decode images, shared by all data sets of a command.

Importing this module does not load torch.

A server process, which has only loaded the libraries, forks the workers. A fork of this process may hang,
because it copies the state of OpenMP and CUDA threads but not the threads.
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
from hydractl.processes.signals import received_end_signal

P = ParamSpec("P")
T = TypeVar("T")
MAX_WORKERS = 8
"""Maximum number of workers with `auto`. Chosen by hand; doubling it costs the memory of up to eight more
processes."""
MIN_IMAGES = 4096
"""Minimum number of images for workers with `auto`, because starting workers takes time. Chosen by hand;
doubling it decodes medium-sized data in threads."""
SPARE = 2
"""Number of cores that threads keep busy despite the interpreter lock. Chosen by hand; doubling it uses
workers only on more than four cores."""
SHARED_BYTES = 1 << 30
"""Free shared memory that `auto` requires, in bytes. Chosen by hand: containers often have 64 MB, too little
for batches. Doubling it disables workers on machines with less than 2 GiB."""
BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGHUP}
_SHARED = "/dev/shm"  # noqa: S108 - not a place for scratch files: what the system shares memory through
_LOADED = [
    "hydractl.data.batches",
    "hydractl.data.sources.columns",
    "hydractl.data.sources.folder",
    "timm.data",
]


def shared_memory_error(error: Exception) -> InputError:
    """Return the error for processes without shared memory."""
    return InputError(
        f"processes that decode images cannot share memory in `{_SHARED}`: {reason_of(error)}",
        hint=f"add `--num-workers 0`, or let the machine share more memory (`df {_SHARED}`)",
    )


class WorkerPool:
    """Pool of worker processes. They end with the last reference to the pool, or with this process."""

    _living: ClassVar[weakref.WeakValueDictionary[int, WorkerPool]] = weakref.WeakValueDictionary()

    def __init__(self, workers: int) -> None:
        """Start the worker processes.

        Args:
            workers: Number of processes.

        Raises:
            InputError: If processes cannot share memory on this machine.
        """
        self.workers = workers
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        with _isolated_start():
            forkserver.ensure_running()  # the server loads libraries in the background
            try:
                self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
            except OSError as error:
                raise shared_memory_error(error) from error
        # Wait for the workers: a program that ends early may write to a pipe that the pool's thread is
        # closing (EBADF).
        weakref.finalize(self, self._pool.shutdown, wait=True, cancel_futures=True)

    @classmethod
    def of(cls, workers: int | None, *, images: int) -> WorkerPool | None:
        """Return the pool with a number of workers, shared by data sets.

        None decodes in threads of this process.

        Args:
            workers: Number of processes, 0 for threads. None chooses by the number of images and cores.
            images: Number of images to decode.

        Raises:
            InputError: If processes cannot share memory on this machine.
        """
        count = default_workers(images) if workers is None else workers
        return (cls._living.get(count) or cls._living.setdefault(count, cls(count))) if count else None

    def submit(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Run a function in a worker and return its future.

        Raises:
            InputError: If a worker was killed.
            KeyboardInterrupt: If a worker ended because this process received a signal to end.
        """
        with self._watched(), _isolated_start():  # `submit` may start a worker
            return self._pool.submit(work, *args, **named)

    def result(self, future: Future[T]) -> T:
        """Wait for a future and return its result; raises like `submit`."""
        with self._watched():
            return future.result()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BrokenProcessPool as error:
            type(self)._living.pop(self.workers, None)
            if received_end_signal():  # the same signal ended the workers
                raise KeyboardInterrupt from error
            raise InputError(
                f"one of {self.workers} processes that decode images was killed, perhaps because memory ran out",
                hint=f"add `--num-workers 0`, or let the machine share more memory (`df {_SHARED}`)",
            ) from error


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(images: int) -> int:
    """Return the number of workers for `auto`: 0 for few images, few cores or little shared memory."""
    cores_per_process = cores() // local_world_size()
    if images < MIN_IMAGES or cores_per_process <= SPARE or not hasattr(os, "fork"):
        return 0
    with contextlib.suppress(OSError):
        shared = os.statvfs(_SHARED)
        if shared.f_flag & os.ST_RDONLY or shared.f_bavail * shared.f_frsize < SHARED_BYTES:
            return 0
    return min(MAX_WORKERS, cores_per_process)


@contextlib.contextmanager
def _isolated_start() -> Iterator[None]:
    """Start processes that do not import `__main__` and ignore Ctrl-C.

    Without `__main__`, the user's script needs no `if __name__ == "__main__"` guard. Ctrl-C reaches all
    processes of a terminal, but only this process handles it. New processes inherit the blocked signals.
    """
    # Start the tracker before blocking: the start of the tracker unblocks signals in this process.
    resource_tracker.ensure_running()
    main = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Prepare a worker process to end with the parent process."""
    # block again: the server may have started before the signals were blocked
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)
