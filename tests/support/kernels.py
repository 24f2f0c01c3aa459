"""Count the kernels of a forward pass (operators that compute, on any device), and all function calls."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "lift_fresh",
        "_unsafe_view",
        "_reshape_alias",
    }
)
"""Operators that compute nothing and do not return a view."""

FUSED = {"_native_multi_head_attention": 3}
"""Operators with hidden kernels, and a lower bound on their number: torch's attention runs two projections
and one attention."""


class Kernels(TorchDispatchMode):
    """A dispatch mode that counts operators, except views and unwritten memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in IDLE and not func.is_view:
            self.calls[name] += FUSED.get(name, 1)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def kernels(run: Callable[[], object]) -> Counter[str]:
    """Return the number of calls of each computing operator in `run`."""
    with Kernels() as found:
        run()
    return found.calls


@torch.inference_mode()
def functions(run: Callable[[], object]) -> int:
    """Return the number of Python and C function calls in `run`, the cost of a device with little to compute."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls
