"""A simulated GPU: tensors on `cuda:0` with the errors of tensors on a real GPU.

Each wraps a CPU tensor, on which operators run, so results equal those of the CPU bit for bit. Code that
moves tensors between devices can thus be tested without a GPU. Operators on tensors of both devices raise
(except for 0-dimensional tensors and operators that a GPU allows), and so does conversion to an array.
Kernels, streams and memory are not simulated. Compilation is disabled.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import torch

# Imported early: dynamo builds a table of torch's functions, and the patches below replace some.
import torch._dynamo
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MIXING = {Tensor.copy_, torch.utils.swap_tensors, torch._has_compatible_shallow_copy_type}
"""Functions that accept tensors of both devices on a GPU. Indexing and other functions with double
underscores are allowed too."""

READS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "bincount",
    "one_hot", "_unique2", "unique_dim", "unique_consecutive",
}  # fmt: skip
"""Operators that transfer values or sizes from the device to the processor.

Composite operators appear under their own name in inference mode, otherwise as their parts.
"""
_heard: list[Counter[str]] = []


@contextlib.contextmanager
def count_synchronizations() -> Iterator[Counter[str]]:
    """Count synchronizations between processor and device, by calling function.

    Counted are blocking copies (including copies of indices or numbers created on the processor), values read
    by the processor, and explicit waits. Numbers passed as operator arguments cost nothing and are not
    counted.
    """
    found: Counter[str] = Counter()
    _heard.append(found)
    try:
        yield found
    finally:
        _heard.pop()


def _crossed(what: str) -> None:
    """Count a synchronization in all active counters."""
    if _heard:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in {"torch", "support"}:
            frame = frame.f_back
        name = f"{what} in {frame.f_globals['__name__']}.{frame.f_code.co_name}"
        for found in _heard:
            found[name] += 1


class GpuTensor(Tensor):
    """A tensor of the simulated device."""

    held: Tensor

    is_cuda, is_cpu = True, False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        """Wrap a CPU tensor. torch's C++ code treats the result as a CPU tensor."""
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CPU,
        )
        made.held = held.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return CUDA

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    def tolist(self) -> Any:
        _crossed("tolist")
        return self.held.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> GpuTensor:
        if id(self) not in memo:
            memo[id(self)] = other = GpuTensor(self.held.clone()).requires_grad_(self.requires_grad)
            other.__dict__.update({k: v for k, v in vars(self).items() if k != "held"})
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor of the device is pickled")

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.held!r})"


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU, and wrap the results if an input or the requested device is the GPU."""
    tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
    known = {id(one.held): one for one in tensors if isinstance(one, GpuTensor)}
    name = func._schema.name.removeprefix("aten::")
    moved = any(one.dim() and not isinstance(one, GpuTensor) for one in tensors)
    if known and (moved or name in READS or _counts(name, args)):
        _crossed(name)
    asked = kwargs.get("device")
    if asked is not None and asked.type == "cuda":
        kwargs = {**kwargs, "device": CPU}
    args, kwargs = tree_map(lambda one: one.held if isinstance(one, GpuTensor) else one, (args, kwargs))
    out = func(*args, **kwargs)
    if not known if asked is None or asked.type == "cpu" else asked.type != "cuda":
        return out

    def placed(one: Any) -> Any:
        if isinstance(one, Tensor):
            return (
                known[id(one)] if id(one) in known else GpuTensor(one)
            )  # In-place operators return the input.
        return one

    return tree_map(placed, out)


def _counts(name: str, args: Any) -> bool:
    """Return whether an operator indexes with a boolean mask. Only the device knows the output's size."""
    return name in {"index", "index_put", "index_put_"} and any(
        one is not None and one.dtype == torch.bool for one in args[1]
    )


class _Making(TorchDispatchMode):
    """A dispatch mode for the creation of tensors on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Refusing(TorchFunctionMode):
    """A function mode that raises for tensors of different devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            with self:  # Hooks and checkpointed blocks run in this mode, too.
                return torch.autograd.backward(args[0], kwargs.pop("gradient", None), **kwargs)
        name = getattr(func, "__name__", str(func))
        if func not in MIXING and not name.startswith("__"):
            tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
            if (
                len(
                    {isinstance(one, GpuTensor) for one in tensors if isinstance(one, GpuTensor) or one.dim()}
                )
                > 1
            ):
                raise RuntimeError(
                    f"{name}: expected all tensors to be on the same device, not cuda:0 and cpu"
                )
            if name == "where" and len({isinstance(one, GpuTensor) for one in tensors}) > 1:
                # Other functions take a 0-dimensional CPU tensor as an argument; `place` copies it.
                _crossed(name)
        return func(*args, **kwargs)


class _Move(torch.autograd.Function):
    """Moves a tensor to the other device, and its gradient back."""

    @staticmethod
    def forward(_: Any, tensor: Tensor, waits: bool = True) -> Tensor:
        if waits:
            _crossed("copy")
        return tensor.held.clone() if isinstance(tensor, GpuTensor) else GpuTensor(tensor.clone())

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Move.apply(gradient), None


# Replacements for torch functions with calls of CUDA.

_to, _apply, _autocast = Tensor.to, nn.Module._apply, torch.autocast.__init__


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replacement for `Tensor.to`."""
    copies, rest = kwargs.pop("copy", False), {}
    waits = not kwargs.get("non_blocking", False) or not (self.is_cuda or getattr(self, "pinned", False))
    if args and isinstance(args[0], Tensor):
        device, dtype = args[0].device, args[0].dtype
    else:
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        rest = {} if layout is None else {"memory_format": layout}
    if device is not None and device.type == "meta":
        return torch.empty_like(
            self.held if isinstance(self, GpuTensor) else self, dtype=dtype, device=device
        )
    out = _to(self, dtype or self.dtype, copy=copies, **rest)
    return out if device is None or device.type == self.device.type else _Move.apply(out, waits)


def pin_memory(self: Tensor) -> Tensor:
    """Replacement for `Tensor.pin_memory`; marks the tensor for asynchronous copies."""
    out = self.detach().requires_grad_(self.requires_grad)
    out.pinned = True
    return out


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """Replacement for `Tensor.type_as`."""
    return self.to(other.device, other.dtype)


def new_tensor(self: Tensor, values: Any, **kwargs: Any) -> Tensor:
    """Replacement for `Tensor.new_tensor`."""
    return torch.tensor(values, **{"dtype": self.dtype, "device": self.device, **kwargs})


def then_moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a constructor that creates the tensor on the CPU and moves the result to the requested device."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        out = make(*args, **kwargs)
        return out if device is None else out.to(device)

    return made


def apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Move the parameters of a module and keep the parameter objects, as on a GPU."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _apply(self, *args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def autocast(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
    """Replacement for `torch.autocast.__init__` that casts on the CPU."""
    _autocast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def without_gradients(self: torch.inference_mode) -> None:
    """Replacement for entering inference mode: disables gradients only, because `GpuTensor` needs full tensors."""
    self.before = torch.is_grad_enabled()
    torch.set_grad_enabled(self.before and not self.mode)


def as_before(self: torch.inference_mode, *_: object) -> None:
    """Replacement for leaving inference mode."""
    torch.set_grad_enabled(self.before)


CUDA_RESULTS: dict[str, Any] = {
    "is_available": True,
    # Data loaders pin memory if this is True, and pinned memory cannot be simulated.
    "is_initialized": False,
    "is_bf16_supported": True,
    "device_count": 1,
    "current_device": 0,
    "_exchange_device": 0,
    "_maybe_exchange_device": 0,
    "mem_get_info": (8 << 30, 8 << 30),
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "get_rng_state": torch.empty(0, dtype=torch.uint8),
    **dict.fromkeys(("_lazy_init", "set_device", "empty_cache"), None),
    **dict.fromkeys(("reset_peak_memory_stats", "set_rng_state", "manual_seed", "manual_seed_all"), None),
}
"""Return values of `torch.cuda` functions. Random numbers on the device come from the CPU generator."""


@contextlib.contextmanager
def simulated_gpu() -> Iterator[None]:
    """Simulate a machine with a GPU within the block."""
    moves = {
        "to": to,
        "cuda": lambda self, *_, **__: to(self, CUDA),
        "cpu": lambda self, *_, **__: to(self, CPU),
    }
    with contextlib.ExitStack() as stack:
        for name, said in CUDA_RESULTS.items():
            stack.enter_context(mock.patch(f"torch.cuda.{name}", lambda *_, said=said, **__: said))
        for patch in (
            mock.patch("torch.cuda.synchronize", lambda *_: _crossed("wait")),  # noqa: PT008 - as follows
            mock.patch("torch.accelerator.is_available", lambda: False),  # noqa: PT008 - compilers trace no mock
            *(
                mock.patch(f"torch.{name}", then_moved(getattr(torch, name)))
                for name in ("tensor", "as_tensor")
            ),
            mock.patch.multiple(
                Tensor, new_tensor=new_tensor, pin_memory=pin_memory, type_as=type_as, **moves
            ),
            mock.patch.object(nn.Module, "_apply", apply),
            mock.patch.object(torch.autocast, "__init__", autocast),
            mock.patch.multiple(torch.inference_mode, __enter__=without_gradients, __exit__=as_before),
            _Making(),
            _Refusing(),
        ):
            stack.enter_context(patch)
        yield
