"""What does a model cost? Parameters, multiply-accumulates, time."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of one call: the median and the 10th and 90th percentile over repeats."""

    median_s: float
    p10_s: float
    p90_s: float


def count_parameters(module: nn.Module) -> int:
    """Return how many numbers the parameters hold; a parameter that is used twice counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def count_macs(fn: Callable[..., object], *args: object) -> int:
    """Return the multiply-accumulates of one call, without gradients.

    Matrix products, convolutions and attention are counted, as half of torch's FLOP counter; norms,
    activations and softmax are not. Works with modules and inputs on the meta device, where nothing is
    computed or stored.

    Args:
        fn: Called once.
        *args: Its arguments.
    """
    # The fused inference path of nn.MultiheadAttention is one operator for which torch has no formula: it
    # would count as nothing.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            fn(*args)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2


def measure_latency(fn: Callable[[], object], *, warmup: int, repeats: int) -> Latency:
    """Measure how long one call takes, until its last kernel is done.

    Percentiles are interpolated linearly between repeats.

    Args:
        fn: Called `warmup` + `repeats` times.
        warmup: Calls whose time is not kept, at least 0.
        repeats: Calls that are measured, at least 1.

    Raises:
        ValueError: If `warmup` or `repeats` is too small.
    """
    if warmup < 0 or repeats < 1:
        raise ValueError(f"warmup must be at least 0 and repeats at least 1, got {warmup} and {repeats}")
    for _ in range(warmup):
        fn()
    times = [_timed(fn) for _ in range(repeats)]
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    p10, median, p90 = torch.quantile(torch.tensor(times, dtype=torch.float64), levels).tolist()
    return Latency(median_s=median, p10_s=p10, p90_s=p90)


def _timed(fn: Callable[[], object]) -> float:
    """Return the seconds of one call, work queued on a GPU included."""
    _wait_for_gpu()
    start = perf_counter()
    fn()
    _wait_for_gpu()
    return perf_counter() - start


def _wait_for_gpu() -> None:
    """Wait for queued kernels, without waking a GPU that is not in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if torch.backends.mps.is_available():
        torch.mps.synchronize()
