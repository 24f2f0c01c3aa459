"""The machine: device, dtype, threads, compilation, library versions, digests."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from hydractl.errors import InputError, UsageError, reason_of
from hydractl.messages import listed

if TYPE_CHECKING:
    from importlib.abc import Loader

    import torch

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CHUNK_BYTES = 1 << 16
"""Size of read buffers. The allocator returns larger buffers to the system at each release, which costs page
faults."""
HASHED_AT_ONCE = 1 << 23
"""Bytes per call of the hash function; see `digest_file`. Chosen by hand; twice the size halves the waits and
doubles the buffer."""
BACKEND = "inductor"
_ONE_AT_A_TIME = threading.Lock()


SPARE_BYTES, ROOM_BYTES = 1 << 25, 1 << 28
"""Virtual memory in bytes: reserved for the error report, and the amount that a process must be able to
reserve. A process that cannot reserve `ROOM_BYTES` has run out of memory."""
LESS_MEMORY = {
    "batch_size": "a smaller `--batch-size`",
    "accumulate": "a larger `--accumulate`",
    "gradient_checkpointing": "`--gradient-checkpointing`",
    "device": "`--device cpu`",
}
"""Hints to lower the device memory of a command, by option name."""


@contextlib.contextmanager
def enough_memory(options: Iterable[str]) -> Iterator[None]:
    """Turn exhausted memory into an error with hints.

    Args:
        options: Names of the command's options. Hints name only these.

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
    """Reserve memory to release before an error is reported.

    None if the process has no memory limit, or the limit does not permit the reservation.
    """
    return None if _memory_limit() is None else _reserved(SPARE_BYTES)


def short_of_memory(error: Exception) -> InputError | None:
    """Return the error to report for lack of virtual memory; None for other causes or without a memory limit."""
    limit = _memory_limit()
    if limit is None:
        return None
    loading = isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError)
    # C++ libraries raise a RuntimeError for exhausted memory.
    exhausted = isinstance(error, RuntimeError) and _reserved(ROOM_BYTES) is None
    if not (loading or exhausted or isinstance(error, MemoryError)):
        return None
    return InputError(
        "the libraries need more virtual memory than the limit of this process, "
        f"{limit / 2**30:.1f} GiB: {reason_of(error)}",
        hint="raise the limit before the command: `ulimit -v unlimited`",
    )


def _memory_limit() -> int | None:
    """Return the limit of virtual memory in bytes. None means unlimited."""
    import resource  # noqa: PLC0415 - Windows lacks it

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _reserved(size: int) -> mmap.mmap | None:
    """Reserve virtual memory. Return None if the limit does not permit the size."""
    try:
        return mmap.mmap(-1, size)
    except OSError:
        return None


def versions(*libraries: str) -> dict[str, str]:
    """Return the installed version of each distribution, sorted by name.

    Raises:
        ModuleNotFoundError: If a distribution is not installed.
    """
    from importlib import metadata  # noqa: PLC0415 - loads longer than all other modules of `--help`

    return {name: metadata.version(name) for name in sorted(libraries)}


def digest_file(path: Path) -> str:
    """Return `sha256:...` of a file, read in large chunks.

    After each chunk the thread waits for the interpreter lock, for milliseconds if another thread is
    computing.
    """
    digest, buffer = hashlib.sha256(), bytearray(HASHED_AT_ONCE)
    with path.open("rb", buffering=0) as file:
        while read := file.readinto(buffer):
            digest.update(memoryview(buffer)[:read])
    return f"sha256:{digest.hexdigest()}"


def digest_files(paths: Iterable[Path]) -> str:
    """Return the digest of one file, or a digest of the digests of several files in order."""
    parts = [digest_file(path) for path in paths]
    return parts[0] if len(parts) == 1 else digest_text("\n".join(parts))


def digest_text(text: str) -> str:
    """Return `sha256:...` of the UTF-8 bytes of a text."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computing with numbers of a floating-point dtype: float64 or float32."""
    import torch  # noqa: PLC0415 - naming dtypes must not cost the import of torch

    # `torch.promote_types` would remain as an operator in programs of torch.export.
    return dtype if dtype.itemsize >= torch.float32.itemsize else torch.float32


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of `bf16`, `fp16` or `fp32`.

    Raises:
        UsageError: If the name is unknown.
    """
    import torch  # noqa: PLC0415 - naming dtypes must not cost the import of torch

    if name not in DTYPES:
        raise UsageError(f"unknown dtype `{name}`", hint=f"use one of {', '.join(DTYPES)}")
    return cast("torch.dtype", getattr(torch, DTYPES[name]))


@contextlib.contextmanager
def without_panic() -> Iterator[None]:
    """Turn a panic of a Rust library into an error, and suppress its message on standard error.

    A panic is not a subclass of `Exception`.

    Raises:
        RuntimeError: With the message of the panic.
    """
    with _ONE_AT_A_TIME, Path(os.devnull).open("wb") as nowhere:
        stderr_copy = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # The module of this class cannot be imported.
                raise RuntimeError(str(error)) from error
            raise
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operators on one thread.

    For short memory-bound operators, waking a second thread costs more than it saves.
    """
    import torch  # noqa: PLC0415 - as above

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compiled(run: Callable[..., Any], *, name: str, dynamic: bool | None = None) -> Callable[..., Any]:
    """Return an equal function, compiled to a single graph on the first call.

    Args:
        run: Function of tensors, or of containers of tensors.
        name: Name of the model in messages.
        dynamic: Whether shapes are dynamic from the first call; None: dynamic after the first change.

    Raises:
        UsageError: At the call, if the function is not one graph, or this machine cannot compile.
    """
    import torch  # noqa: PLC0415 - as above
    from torch._dynamo import exc  # noqa: PLC0415 - half a second that few need

    # FailOnRecompileLimitHit is not a subclass of TorchDynamoException, and is missing in some releases of
    # torch.
    refusals = (exc.TorchDynamoException, getattr(exc, "FailOnRecompileLimitHit", exc.TorchDynamoException))

    # Dropout then draws the same random numbers as without compilation.
    options: dict[str, Any] | None = {"fallback_random": True} if BACKEND == "inductor" else None
    torch.compiler.reset()  # Graphs of earlier models would count towards the recompile limit.
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


COMPILER, UTILITIES = "torch._dynamo", "torch._dynamo.utils"


class LateCompiler(ModuleType):
    """Stand-in for torch's compiler, whose import takes as long as the import of torch.

    Many functions of torch and timm are decorated with `disable`, and torchvision imports
    `is_compile_supported`, but few commands compile. The stand-in has these two functions. Access to any
    other attribute or module of `torch._dynamo` replaces the stand-in by the real package. The command line
    installs the stand-in. `import hydractl` does not.
    """

    __path__: list[str] = []  # noqa: RUF012 - a module is a package if it has this name

    @classmethod
    def install(cls) -> None:
        """Put the stand-in into `sys.modules`."""
        sys.modules |= {COMPILER: cls(COMPILER), UTILITIES: cls(UTILITIES)}
        sys.meta_path.insert(0, cls)

    @classmethod
    def real(cls, name: str) -> ModuleType:
        """Import a module of the real package."""
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
            del sys.modules[COMPILER], sys.modules[UTILITIES]
        import_module(COMPILER)
        return import_module(name)

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        """Return a spec that loads a module of the real package, or None for modules of other packages."""
        if not name.startswith(f"{COMPILER}."):
            return None
        module = cls.real(name)
        restore = partial(vars(module).__setitem__, "__spec__", module.__spec__)
        loader = SimpleNamespace(create_module=lambda _: module, exec_module=lambda _: restore())
        return ModuleSpec(name, cast("Loader", loader))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a module
        if name.startswith("__"):  # `inspect` reads attributes of all modules.
            raise AttributeError(name)
        return getattr(self.real(self.__name__), name)

    def is_compile_supported(self, device: str) -> bool:
        """Return whether a device can run compiled functions."""
        return bool(self.real(UTILITIES).is_compile_supported(device))

    def disable(self, fn: Callable[..., Any] | None = None, *recursive: bool, **options: Any) -> Any:  # noqa: ANN401 - as in torch
        """Return a function that is never compiled; as a decorator with options, a decorator."""

        def real() -> Any:  # noqa: ANN401 - as `disable`
            return self.real(COMPILER).disable(fn, *recursive, **options)

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as `fn`
            call = real() if fn is None or sys.modules["torch"].compiler.is_compiling() else fn
            return call(*args, **kwargs)

        return wraps(fn)(run) if isinstance(fn, FunctionType) else real()


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished all computation. The CPU is always finished."""
    import torch  # noqa: PLC0415 - as above

    if device.type == "cuda":
        torch.cuda.synchronize(device)  # Without the argument, the call waits for the current GPU.
    elif device.type == "mps":
        torch.mps.synchronize()


def on_cpu(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return detached copies of tensors on the CPU, with a single wait per device."""
    copies = tuple(tensor.detach().to("cpu", non_blocking=True) for tensor in tensors)
    for device in {tensor.device for tensor in tensors}:
        wait_for(device)
    return copies


def on_device(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Move a tensor to a device, and convert it to a dtype if given. Copies to CUDA do not block.

    Pinned memory is needed: the GPU cannot read other memory itself, so the copy would block the CPU.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, dtype, non_blocking=True)
    return tensor.to(device, dtype)


def pick_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu`, `cuda[:N]` or `mps`. `auto` prefers cuda, then mps.

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
