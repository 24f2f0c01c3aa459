"""Intervals of means and differences of numbers that have intervals. Importing it loads no scipy."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, inf, sqrt
from statistics import fmean, stdev

from hydractl.reporting.report_values import Number

LEVEL = 0.95
SEEDS, SETS = "seeds", "sets"
"""What several reports differ in."""


def student(values: Sequence[float], *, low: float = -inf, high: float = inf) -> Number:
    """Return the mean of two or more values, their deviation, and the interval of the mean by Student's t (1908).

    Args:
        values: Where all are equal, nothing but that is said.
        low: No value can be less, so the interval does not reach beyond.
        high: Likewise.
    """
    if len({*values}) == 1:
        return Number(value=values[0])
    from scipy.special import stdtrit  # noqa: PLC0415 - `--help` does without

    mean, deviation = fmean(values), stdev(values)
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * deviation / sqrt(len(values))
    return Number(value=mean, low=max(low, mean - half), high=min(high, mean + half), deviation=deviation)


def square_and_add(minuend: Number, subtrahend: Number) -> Number:
    """Return a difference with the interval that follows from both intervals, for estimates that are independent.

    Newcombe 1998, method 10; Zou and Donner 2008, eq. 6. Of rows that are right and wrong on the same samples it is too wide.
    """
    gap = minuend.value - subtrahend.value
    if minuend.interval is None or subtrahend.interval is None:
        return Number(value=gap)
    (low, high), (other_low, other_high) = minuend.interval, subtrahend.interval
    return Number(
        value=gap,
        low=gap - hypot(minuend.value - low, other_high - subtrahend.value),
        high=gap + hypot(high - minuend.value, subtrahend.value - other_low),
    )


def mean_of_sets(numbers: Sequence[Number]) -> Number:
    """Return the mean of estimates on data sets that share no sample, whose interval follows from theirs where all have one.

    Square-and-add of their means: Zou and Donner 2008, eq. 6, with weights 1 / n. It is of these sets, not of others like them.
    """
    mean, intervals = fmean(n.value for n in numbers), [n.interval for n in numbers]
    if None in intervals:
        return Number(value=mean)
    below = (n.value - low for n, (low, _) in zip(numbers, filter(None, intervals), strict=True))
    above = (high - n.value for n, (_, high) in zip(numbers, filter(None, intervals), strict=True))
    return Number(
        value=mean, low=mean - hypot(*below) / len(numbers), high=mean + hypot(*above) / len(numbers)
    )
