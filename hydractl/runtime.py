"""The machine: device, dtype, threads, ranks, library versions, digests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from hydractl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    import torch
    from torch.distributed.distributed_c10d import Store

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CHUNK_BYTES = 1 << 16  # larger buffers are handed back to the system at each release, and cost page faults
HASHED_AT_ONCE = 1 << 23
PATIENCE_S = 7 * 24 * 3600
"""For how long processes wait for each other: one that has died closes its connections and is noticed at once."""
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
LINGER_S = 10.0
"""For how long a process that has nothing to say waits to be ended by its launcher, whose report then begins with the one
that failed."""


class Meeting(NamedTuple):
    """Where processes meet: a table of texts that all share, this one's number, and how many there are."""

    store: Store
    rank: int
    world: int


def versions(*libraries: str) -> dict[str, str]:
    """Return the installed version of each named distribution."""
    return {name: metadata.version(name) for name in sorted(libraries)}


def digest_file(path: Path) -> str:
    """Return `sha256:...` of a file's bytes, read in chunks.

    Large ones: a thread that hashes waits for the interpreter once a chunk, for milliseconds where another one computes.
    """
    digest, buffer = hashlib.sha256(), bytearray(HASHED_AT_ONCE)
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return f"sha256:{digest.hexdigest()}"


def digest_text(text: str) -> str:
    """Return `sha256:...` of a text's UTF-8 bytes."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that `bf16`, `fp16` or `fp32` names.

    Raises:
        UsageError: If the name is none of these.
    """
    import torch  # noqa: PLC0415 - naming dtypes must not cost the import of torch

    if name not in DTYPES:
        raise UsageError(f"unknown dtype `{name}`", hint=f"choose one of {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, DTYPES[name])
    return dtype


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operators on one thread: short memory-bound ones lose more to waking a second than they gain."""
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda[:N]` or `mps` means here.

    Raises:
        UsageError: If the device is unknown or absent.
    """
    import torch  # noqa: PLC0415 - as above

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device `{name}`", hint="choose auto, cpu, cuda, cuda:N or mps") from error
    absent = (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()) or (
        device.type == "mps" and not torch.backends.mps.is_available()
    )
    if absent or device.type not in {"cpu", "cuda", "mps"}:
        raise UsageError(
            f"device `{name}` is not available on this machine", hint="use `--device auto` or `--device cpu`"
        )
    return device


def own_device(name: str) -> torch.device:
    """Return the device on which this process scores; several processes of one machine take one GPU each.

    Scores are computed in float64, which MPS lacks.

    Args:
        name: As for `pick_device`.

    Raises:
        UsageError: If the device is unknown, absent or MPS, or there are fewer GPUs than processes.
    """
    import torch  # noqa: PLC0415 - as above

    device = pick_device(name)
    if device.type == "mps":
        if name != "auto":
            raise UsageError(
                "`--device mps` has no float64, which scores are computed in", hint="use `--device cpu`"
            )
        device = torch.device("cpu")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if world_size() == 1 or device.type != "cuda":
        return device
    if ":" in name:
        raise UsageError(
            f"`--device {name}` is one device for {world_size()} processes", hint="use `--device cuda`"
        )
    if here > (count := torch.cuda.device_count()):
        raise UsageError(
            f"{here} processes share {count} GPU{'' if count == 1 else 's'} on this machine",
            hint=f"start `torchrun --nproc-per-node {count}`, or use `--device cpu`",
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank())))


def rank() -> int:
    """Return this process's rank under torchrun or accelerate, 0 when there is one process."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return how many processes run this command together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def meeting(purpose: str) -> Meeting:
    """Return where the processes of this run leave each other notes.

    Raises:
        RuntimeError: If the launcher cannot be reached.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 - as above
    from torch.distributed.rendezvous import rendezvous  # noqa: PLC0415 - as above

    notes, own, world = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))
    # a process may meet the others several times under one launcher, and must not find what was left the last time
    times = notes.add(f"hydractl/{purpose}/{own}", 1)
    return Meeting(PrefixStore(f"hydractl/{purpose}/{times}", notes), own, world)


def require_one_process(command: str) -> None:
    """Refuse to run under torchrun or accelerate, where each process would do all of the work.

    Raises:
        UsageError: If there are several processes.
    """
    if world_size() > 1:
        raise UsageError(
            f"`{command}` runs in one process, not in {world_size()}",
            hint="leave out `torchrun`; `finetune` and `score` take it",
        )


_told_to_end = threading.Event()


def told_to_end() -> bool:
    """Return whether a signal has asked this process to end: a library that was loading may have swallowed the exception."""
    return _told_to_end.is_set()


def unwind(_number: int, _frame: FrameType | None) -> None:
    """Answer a signal as Ctrl-C, so that scratch files go.

    Raises:
        KeyboardInterrupt: Always.
    """
    _told_to_end.set()
    raise KeyboardInterrupt


def unwind_once(_number: int, _frame: FrameType | None) -> None:
    """Answer the first of several signals as Ctrl-C: a launcher passes on what all have got from the terminal.

    Raises:
        KeyboardInterrupt: Always.
    """
    heed_no_more_signals()
    _told_to_end.set()
    raise KeyboardInterrupt


def heed_no_more_signals() -> None:
    """Let a process of several, which says why it ends, end: the launcher's signal to do so would add a second voice."""
    for name in ENDING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is unwind_once:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def signals_that_kill() -> Iterator[None]:
    """Let signals that ask a process to end do so at once, also while it waits inside a library.

    In other threads than the main one, which alone gets signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for name in ENDING if (n := getattr(signal, name, None)) is not None]
    answers = {number: answer for number in numbers if callable(answer := signal.getsignal(number))}
    try:
        for number in answers:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
