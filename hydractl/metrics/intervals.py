"""How sure is a measured number? Bootstrap confidence intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

BOUNDS = (0.025, 0.975)


def bootstrap(
    n: int, statistic: Callable[[Tensor], float], *, resamples: int = 200, generator: torch.Generator
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a statistic (Efron 1979).

    Quantiles are interpolated linearly between resamples. Resampling knows no classes: a statistic of two
    samples splits the indices itself.

    Args:
        n: How many samples there are, at least 1.
        statistic: Maps indices (n,), int64, in 0..n-1, drawn with replacement, to a finite number.
        resamples: How often it is called, at least 1.
        generator: Where the draws come from; equal states give equal intervals.

    Returns:
        The lower and the upper bound.

    Raises:
        ValueError: If `n` or `resamples` is below 1, or the statistic is not finite.
    """
    if n < 1 or resamples < 1:
        raise ValueError(f"there must be at least one sample and one resample, got {n} and {resamples}")
    values = []
    for resample in range(resamples):
        index = torch.randint(n, (n,), generator=generator, device=generator.device)
        value = float(statistic(index))
        if not math.isfinite(value):
            raise ValueError(f"the statistic of resample {resample} is {value}, so it has no interval")
        values.append(value)
    levels = torch.tensor(BOUNDS, dtype=torch.float64)
    low, high = torch.quantile(torch.tensor(values, dtype=torch.float64), levels).tolist()
    return low, high
