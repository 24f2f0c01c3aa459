"""The machine: device, dtype, threads, what compiles for it, library versions, digests."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydractl.errors import InputError, UsageError, reason_of
from hydractl.messages import listed

if TYPE_CHECKING:
    import torch

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CHUNK_BYTES = 1 << 16  # larger buffers are handed back to the system at each release, and cost page faults
HASHED_AT_ONCE = 1 << 23
BACKEND = "inductor"
_ONE_AT_A_TIME = threading.Lock()


SPARE_BYTES, ROOM_BYTES = 1 << 25, 1 << 28
"""Virtual memory reserved for the error report, in bytes. A process that cannot reserve it has run out of memory."""
LESS_MEMORY = {
    "batch_size": "a smaller `--batch-size`",
    "accumulate": "a larger `--accumulate`",
    "gradient_checkpointing": "`--gradient-checkpointing`",
    "device": "`--device cpu`",
}
"""Hints that lower the device memory of a command, by option name."""


@contextlib.contextmanager
def enough_memory(options: Iterable[str]) -> Iterator[None]:
    """Turn exhausted memory into an error that names what to change.

    Args:
        options: The names of the options that the command has.

    Raises:
        InputError: If a device or the machine has too little memory.
    """
    try:
        yield
    except Exception as error:
        torch = sys.modules.get("torch")
        on_device = torch is not None and isinstance(error, torch.OutOfMemoryError)
        if not (on_device or isinstance(error, MemoryError)):
            raise
        option_names = {*options}
        advice = [
            hint
            for name, hint in LESS_MEMORY.items()
            if name in option_names and (on_device or name != "device")
        ]
        raise InputError(
            f"{'the device' if on_device else 'this machine'} has too little memory: {reason_of(error)}",
            hint=f"try {listed(advice, last='or')}" if advice else None,
        ) from error


def spare_memory() -> mmap.mmap | None:
    """Return memory to release before a failure is reported, in a process whose virtual memory has a limit; else None."""
    return None if _memory_limit() is None else _reserved(SPARE_BYTES)


def short_of_memory(error: Exception) -> InputError | None:
    """Return what to say where the libraries failed for lack of virtual memory, of which the process may have a limit; else None."""
    limit = _memory_limit()
    if limit is None:
        return None
    loading = isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError)
    # C++ reports exhausted memory as a RuntimeError
    exhausted = isinstance(error, RuntimeError) and _reserved(ROOM_BYTES) is None
    if not (loading or exhausted or isinstance(error, MemoryError)):
        return None
    return InputError(
        "the libraries need more virtual memory than the limit of this process, "
        f"{limit / 2**30:.1f} GiB: {reason_of(error)}",
        hint="raise the limit before the command: `ulimit -v unlimited`",
    )


def _memory_limit() -> int | None:
    """Return how many bytes of virtual memory this process may have, None where there is no limit."""
    import resource  # noqa: PLC0415 - Windows lacks it

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _reserved(size: int) -> mmap.mmap | None:
    """Return so many bytes of virtual memory, None where the process may not have them."""
    try:
        return mmap.mmap(-1, size)
    except OSError:
        return None


def versions(*libraries: str) -> dict[str, str]:
    """Return the installed version of each named distribution."""
    from importlib import metadata  # noqa: PLC0415 - takes longer to load than all that `--help` needs beside it

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


def digest_files(paths: Iterable[Path]) -> str:
    """Return the digest of a file, or of several ones' digests in order."""
    parts = [digest_file(path) for path in paths]
    return parts[0] if len(parts) == 1 else digest_text("\n".join(parts))


def digest_text(text: str) -> str:
    """Return `sha256:...` of a text's UTF-8 bytes."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that what is made of such floating-point numbers is computed in: float32, or float64 of float64."""
    import torch  # noqa: PLC0415 - naming dtypes must not cost the import of torch

    # no `promote_types`, which programs of torch.export keep as an operator
    return dtype if dtype.itemsize >= torch.float32.itemsize else torch.float32


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype that `bf16`, `fp16` or `fp32` names.

    Raises:
        UsageError: If the name is none of these.
    """
    import torch  # noqa: PLC0415 - naming dtypes must not cost the import of torch

    if name not in DTYPES:
        raise UsageError(f"unknown dtype `{name}`", hint=f"use one of {', '.join(DTYPES)}")
    return cast("torch.dtype", getattr(torch, DTYPES[name]))


@contextlib.contextmanager
def without_panic() -> Iterator[None]:
    """Make an error of a panic in a library written in Rust, which is no `Exception`, and keep it off standard error.

    Raises:
        RuntimeError: With what it says.
    """
    with _ONE_AT_A_TIME, Path(os.devnull).open("wb") as nowhere:
        stderr_copy = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # of a module that cannot be imported
                raise RuntimeError(str(error)) from error
            raise
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)


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


def compiled(run: Callable[..., Any], *, name: str, dynamic: bool | None = None) -> Callable[..., Any]:
    """Return what computes as `run` does, compiled as one graph when it is first called.

    Args:
        run: Tensors, and what holds them, to tensors.
        name: What messages call the model.
        dynamic: Whether shapes are left open from the first; None once they have changed.

    Raises:
        UsageError: When it runs, if it is not one graph, or this machine cannot compile.
    """
    import torch  # noqa: PLC0415 - as above
    from torch._dynamo import exc  # noqa: PLC0415 - half a second that few need

    # the second is no kind of the first, and not there in every torch
    refusals = (exc.TorchDynamoException, getattr(exc, "FailOnRecompileLimitHit", exc.TorchDynamoException))

    # what drops draw is what they draw uncompiled
    options: dict[str, Any] | None = {"fallback_random": True} if BACKEND == "inductor" else None
    torch.compiler.reset()  # another model counts no more
    inner = torch.compile(run, fullgraph=True, dynamic=dynamic, backend=BACKEND, options=options)

    def outer(*args: Any) -> Any:  # noqa: ANN401 - as `run`
        try:
            return inner(*args)
        except refusals as error:
            why = error.inner_exception if isinstance(error, exc.BackendCompilerFailed) else error
            raise UsageError(
                f"`--compile`: {name} cannot be compiled here: {str(why).strip().splitlines()[0]}",
                hint="leave out `--compile`",
            ) from error

    return outer


def wait_for(device: torch.device) -> None:
    """Wait until a device has computed all that it was given; a processor has when its call returns."""
    import torch  # noqa: PLC0415 - as above

    if device.type == "cuda":
        torch.cuda.synchronize(device)  # without it, of whichever GPU is the current one
    elif device.type == "mps":
        torch.mps.synchronize()


def on_cpu(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors on the CPU after one wait for their device, however many they are."""
    copies = tuple(tensor.detach().to("cpu", non_blocking=True) for tensor in tensors)
    for device in {tensor.device for tensor in tensors}:
        wait_for(device)
    return copies


def on_device(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor on a device, in a dtype if one is given; of CUDA nobody waits for the copy.

    It leaves from memory that the GPU reads by itself: from other memory the processor would have to hand it over.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, dtype, non_blocking=True)
    return tensor.to(device, dtype)


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
        raise UsageError(f"unknown device `{name}`", hint="use auto, cpu, cuda, cuda:N or mps") from error
    absent = (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()) or (
        device.type == "mps" and not torch.backends.mps.is_available()
    )
    if absent or device.type not in {"cpu", "cuda", "mps"}:
        raise UsageError(
            f"device `{name}` is not available on this machine", hint="use `--device auto` or `--device cpu`"
        )
    return device
