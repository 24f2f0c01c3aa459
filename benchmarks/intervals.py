"""95 % interval of a mean over a few seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import t as student


def half_interval(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of a mean by Student's t; infinity for fewer than two values."""
    if len(values) < 2:
        return math.inf
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
