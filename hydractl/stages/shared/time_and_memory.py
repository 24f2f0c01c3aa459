"""How long a piece of work takes and how much memory, for `--estimate`: measured on a little of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hydractl.runtime import wait_for
from hydractl.scoring.circuit.memory_budget import Peak

REPEATS = 2
"""A piece of work runs so often after the run that warms up."""


def seconds_of(
    device: torch.device, work: Callable[[], object], *, forget: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Return the least seconds of a few runs, after one that warms up; and how much longer that one takes.

    Args:
        device: Where it computes, which is waited for.
        work: Called several times.
        forget: Called before each, so that it begins as the first did.
    """
    spent = []
    for _ in range(1 + REPEATS):
        forget()
        begin = clock(device)
        work()
        spent.append(clock(device) - begin)
    least = min(spent[1:])
    return least, max(0.0, spent[0] - least)


def clock(device: torch.device) -> float:
    """Return the time in seconds when a device has done all that it was given."""
    wait_for(device)
    return time.perf_counter()


def highest_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Return the most bytes that are in use at once for a piece of work, beside what was before."""
    if device.type != "cuda":
        peak = Peak()
        with peak:
            work()
        return peak.highest
    torch.cuda.reset_peak_memory_stats(device)
    before: int = torch.cuda.memory_allocated(device)
    work()
    highest: int = torch.cuda.max_memory_allocated(device)
    return highest - before
