"""Compute real values for the simulated GPU of `fake_cuda` (kernels do nothing).

Each operator runs twice: first in torch's CUDA code, for its checks and calls, then in torch's CPU code on
the same memory, which is host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")
READS = {
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "argwhere", "histc",
    "multinomial", "repeat_interleave", "linalg_eigh", "_linalg_eigh", "linalg_cholesky_ex", "linalg_inv_ex", "cholesky", "cholesky_solve", "cholesky_inverse", "_cholesky_solve_helper",
}  # fmt: skip
"""Operators whose output size or success depends on values in device memory, which kernels do not write.
Indexing with a boolean mask also belongs here."""
ITSELF = {"set_", "resize_", "detach", "alias", "record_stream", "_local_scalar_dense", "_pin_memory", "is_pinned", "lift_fresh"}  # fmt: skip
"""Operators without values of their own, or with access to values in place."""

OTHERS = {"torch", "accelerate", "support"}
"""Packages skipped in the search for the caller of a wait."""


def on_host(x: Any) -> Any:
    """Return the CPU argument: a tensor on the same memory, the CPU device, or None for a CUDA generator."""
    if isinstance(x, torch.device):
        return CPU if x.type == "cuda" else x
    if isinstance(x, torch.Generator):
        return None if x.device.type == "cuda" else x
    if not isinstance(x, torch.Tensor) or not x.is_cuda:
        return x
    memory = x.untyped_storage()
    if not memory.nbytes():
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
    same = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), CPU, memory.nbytes())
    return torch.empty(0, dtype=x.dtype).set_(same, x.storage_offset(), x.size(), x.stride())


class Values(TorchDispatchMode):
    """A dispatch mode that runs each operator on CUDA and on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.library = ctypes.CDLL(os.environ["LD_PRELOAD"])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor) and x.is_cuda]
        asked = kwargs.get("device")
        name = func._schema.name.removeprefix("aten::")
        if (not given and (asked is None or asked.type != "cuda")) or name in ITSELF:
            return func(*args, **kwargs)
        host_args, host_kwargs = tree_map(on_host, (args, kwargs))
        picks = name.startswith(("index", "_index")) and any(
            isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in tree_iter(args[1:])
        )
        if given and (picks or name in READS):
            self.library.fake_wait(name.encode())
            made = func(*host_args, **host_kwargs)
            if func._schema.is_mutable:
                return args[0]
            return tree_map(lambda x: x.to(given[0].device) if isinstance(x, torch.Tensor) else x, made)
        out = func(*args, **kwargs)
        made = func(*host_args, **host_kwargs)
        # Views and inputs returned unchanged already have values.
        held = {x.untyped_storage().data_ptr() for x in given}
        if not func._schema.is_mutable:
            for real, value in zip(tree_iter(out), tree_iter(made), strict=True):
                if isinstance(real, torch.Tensor) and real.untyped_storage().data_ptr() not in held:
                    on_host(real).copy_(value)
        return out


@contextlib.contextmanager
def values() -> Iterator[None]:
    """Compute kernel results within the block. Attention and convolutions use decomposed implementations."""
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), Values():
        yield


@contextlib.contextmanager
def waits() -> Iterator[Counter[str]]:
    """Count within the block how often the processor waits for a device, by calling function.

    Moving a module waits for each of its tensors; these waits are counted as `weights` for any caller.
    """
    library, found = ctypes.CDLL(os.environ["LD_PRELOAD"]), Counter[str]()

    def progress_log() -> None:
        frame, name = sys._getframe(), ""
        while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in OTHERS:
            name = "weights" if frame.f_code is torch.nn.Module._apply.__code__ else name
            frame = frame.f_back
        place = f"{frame.f_globals['__name__'].removeprefix('hydractl.')}.{frame.f_code.co_qualname}"
        found[name or place] += 1

    called = ctypes.CFUNCTYPE(None)(progress_log)
    library.fake_hear(called)
    try:
        yield found
    finally:
        library.fake_hear(None)
