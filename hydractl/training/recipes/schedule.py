"""The learning rate as a function of the step."""

from __future__ import annotations

from math import cos, pi


def lr_factor(step: int, *, total: int, warmup: int, schedule: str, floor: float) -> float:
    """Return the learning rate of a step as a fraction of its peak, in (0, 1].

    Linear warm-up to the peak, reached at step `warmup`; from there `constant`, or down to `floor` by a line or half a
    cosine (Loshchilov and Hutter 2017, eq. 5), reached where step `total` would be.

    Args:
        step: Counted from 0, below `total`.
        total: All steps, warm-up included.
        warmup: Steps before the peak, 0 <= warmup < total.
        schedule: `constant`, `linear` or `cosine`.
        floor: In [0, 1].

    Raises:
        ValueError: If a number is out of range or the schedule unknown.
    """
    if not (0 <= step < total and 0 <= warmup < total and 0 <= floor <= 1):
        raise ValueError(f"step {step} of {total}, warmup {warmup}, floor {floor}: out of range")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / (total - warmup)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return floor + (1 - floor) * (1 - progress)
        case "cosine":
            return floor + (1 - floor) * (1 + cos(pi * progress)) / 2
        case _:
            raise ValueError(f"unknown schedule {schedule!r}")
