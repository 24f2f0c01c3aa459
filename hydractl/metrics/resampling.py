"""Bootstrap intervals of metrics and of differences, with the same resamples for every metric and row.

Most intervals are percentile intervals (Efron 1979). Percentile intervals are wrong for calibration errors,
which sum absolute values: the error of a resample exceeds the error of the sample, and the latter exceeds the
true error. Let the calibration error be theta = sum |g_b|, with measured gaps g_b of its bins, and let Z_b be
the deviations of a resample's gaps from g_b. Then

- theta is at most the measured error - sum sign(g_b) Z_b, because the absolute value is convex;
- theta is at least the measured error - (sum sign(g_b) Z_b over bins with a clear gap + sum |Z_b| over the
  other bins). The sum in parentheses estimates the derivative of theta in the direction of Z (Fang and Santos
  2019, Inference on Directionally Differentiable Functions). A gap is clear beyond sqrt(ln N) of its standard
  deviations (Andrews and Soares 2010).

Quantiles of both bounds over the resamples give the interval. The interval contains the measured error,
includes 0 if the data are compatible with perfect calibration, and is conservative if some gaps are neither
clear nor zero. The bins are the bins of the original sample.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hydractl.manifest.document import Value
from hydractl.metrics.metric_spec import Metric

BOUNDS = (0.025, 0.975)
"""Quantiles of a 95 % interval."""
DRAWN_AT_ONCE = 2**18
"""Maximum number of resampled indices in memory, 2 MB of int64, unless a single resample has more. Chosen by
hand; doubling the limit doubles the memory and changes no index."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricEstimate:
    """A metric with bounds of the true value from each of R resamples.

    Attributes:
        value: Measured value.
        count: Number of samples. `None` for a mean over data sets.
        low: Lower bounds, shape (R,). `None` without an interval.
        high: Upper bounds, shape (R,). For a percentile interval both bounds equal the value on the resample.
    """

    value: float
    count: int | None
    low: Tensor | None = None
    high: Tensor | None = None

    def to_value(self) -> Value:
        """Return the value with its 95 % interval, from linearly interpolated quantiles of the bounds.

        The interval is extended to contain the value.
        """
        if self.low is None or self.high is None:
            return Value(value=self.value, count=self.count)
        low, high = (
            float(torch.quantile(bounds.double(), bound))
            for bounds, bound in zip((self.low, self.high), BOUNDS, strict=True)
        )
        return Value(value=self.value, low=min(low, self.value), high=max(high, self.value), count=self.count)

    def difference(self, subtrahend: MetricEstimate) -> MetricEstimate | None:
        """Return the difference of two estimates on the same resamples, or `None` if either has no interval."""
        if self.low is None or self.high is None or subtrahend.low is None or subtrahend.high is None:
            return None
        return MetricEstimate(
            value=self.value - subtrahend.value,
            count=self.count,
            low=self.low - subtrahend.high,
            high=self.high - subtrahend.low,
        )


def mean_of(numbers: Sequence[MetricEstimate]) -> MetricEstimate:
    """Return the mean of estimates on the same resamples of the ID set, without a sample count.

    The mean has an interval if all estimates have intervals.
    """
    lows, highs = (
        [bounds for number in numbers if (bounds := getattr(number, side)) is not None]
        for side in ("low", "high")
    )
    has_interval = len(lows) == len(highs) == len(numbers)
    return MetricEstimate(
        value=math.fsum(number.value for number in numbers) / len(numbers),
        count=None,
        low=torch.stack(lows).double().mean(0) if has_interval else None,
        high=torch.stack(highs).double().mean(0) if has_interval else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """Settings of the bootstrap.

    Attributes:
        resamples: Number of resamples; 0 for no intervals.
        seed: Random seed.
    """

    resamples: int = 200
    seed: int = 0

    def draws(self, *counts: int, name: str = "", labels: int = 1) -> Iterator[tuple[Tensor, ...]]:
        """Yield resamples in chunks: indices (R, n), int64, drawn with replacement, for each set of size n.

        Data sets are resampled independently and keep their sizes. Equal seeds, sizes and names give equal
        indices. The first data set has the same indices for every name, so the ID set has the same resamples
        for each OOD set.

        Args:
            counts: Number of samples of each data set, at least 1.
            name: Name of the OOD set. Selects the indices of all data sets but the first.
            labels: Number of values per sample. Reduces the size of chunks, and changes no index.
        """
        # torch's generator uses only 32 bits of a seed
        seeds = [
            self.seed,
            *(
                int(np.random.SeedSequence((self.seed, zlib.crc32(name.encode()), i)).generate_state(1)[0])
                for i in range(1, len(counts))
            ),
        ]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        at_once = max(1, DRAWN_AT_ONCE // (sum(counts) * labels))
        for first in range(0, self.resamples, at_once):
            rows = [
                [torch.randint(n, (n,), generator=g) for n, g in zip(counts, generators, strict=True)]
                for _ in range(first, min(first + at_once, self.resamples))
            ]
            yield tuple(torch.stack(set_indices) for set_indices in zip(*rows, strict=True))

    def values(
        self, metrics: Sequence[Metric], *sets: Mapping[str, Tensor], name: str = "", labels: int = 1
    ) -> dict[str, MetricEstimate]:
        """Return the metrics, with intervals for metrics that have intervals.

        Args:
            metrics: Metrics to compute.
            sets: Arguments of the metrics by name, each of shape (N,). ID and OOD samples are separate data
                sets.
            name: Name of the OOD set, which selects its resamples.
            labels: Number Q of consecutive values per sample. Vectors then have shape (N Q,), and a resample
                draws all values of a sample together. NaN marks padding and is ignored.
        """
        counts = [len(next(iter(samples.values()))) // labels for samples in sets]
        within = torch.arange(labels)
        sample = {name: vector for samples in sets for name, vector in samples.items()}
        counted = without_nan(sample)
        point_estimates = {m.name: float(m.of(counted)) for m in metrics}
        spread: dict[str, list[Tensor]] = {m.name: [] for m in metrics if m.interval and self.resamples}
        bins = {m.name: _bins(m, sample[m.arguments[0]]) for m in metrics if m.bins and m.name in spread}
        read = {name for m in metrics if m.interval for name in m.arguments}
        for sample_indices in self.draws(*counts, name=name, labels=labels) if spread else ():
            indices = tuple((index.unsqueeze(-1) * labels + within).flatten(-2) for index in sample_indices)
            resample = {
                name: samples[name].index_select(0, index.flatten()).view(index.shape)
                for samples, index in zip(sets, indices, strict=True)
                for name in samples
                if name in read
            }
            for metric in metrics:
                if metric.name in bins:
                    bin_numbers = bins[metric.name]
                    spread[metric.name].append(
                        _gaps(metric, resample, bin_numbers[indices[0]], int(bin_numbers.max()) + 1)
                    )
                elif metric.name in spread:
                    spread[metric.name].append(torch.as_tensor(metric.of(resample)))
        every = {name: torch.cat(parts) for name, parts in spread.items()}
        gaps = {
            m.name: _gaps(m, sample, bins[m.name], every[m.name].shape[-1]) for m in metrics if m.name in bins
        }
        lacking = {m.name for m in metrics if m.may_lack and m.name in every and every[m.name].isnan().any()}
        return {
            name: calibration_error(value, gaps[name], every[name], count=sum(counts))
            if name in gaps
            else measured(value, None if name in lacking else every.get(name), count=sum(counts))
            for name, value in point_estimates.items()
        }


def measured(value: float, resampled: Tensor | None, *, count: int) -> MetricEstimate:
    """Return a value with a percentile interval.

    Args:
        value: Measured value.
        resampled: Values on the resamples, shape (R,). `None` for no interval.
        count: Number of samples.

    Raises:
        ValueError: If a value of a resample is not finite.
    """
    if resampled is not None and not resampled.isfinite().all():
        first = int((~resampled.isfinite()).int().argmax())
        raise ValueError(
            f"the statistic is {float(resampled[first])} on resample {first}, so it has no interval"
        )
    return MetricEstimate(value=value, count=count, low=resampled, high=resampled)


def calibration_error(value: float, gaps: Tensor, resampled: Tensor, *, count: int) -> MetricEstimate:
    """Return a calibration error with the interval of the module docstring, clipped to [0, 1].

    Args:
        value: Sum of the absolute values of `gaps`.
        gaps: Gap of each bin, shape (B,): the mean over all samples of hit minus confidence, with 0 for
            samples in other bins.
        resampled: Gaps of each resample, shape (R, B).
        count: Number of samples.
    """
    moved = resampled - gaps
    along = moved * gaps.sign()
    clear = gaps.abs() > math.sqrt(math.log(count)) * moved.std(0, correction=0)
    below = torch.where(clear, along, moved.abs()).sum(-1)
    return MetricEstimate(
        value=value,
        count=count,
        low=(value - below).clamp(0, 1),
        high=(value - along.sum(-1)).clamp(0, 1),
    )


def _gaps(metric: Metric, sample: Mapping[str, Tensor], bins: Tensor, count: int) -> Tensor:
    """Return the gaps (..., B) of a calibration error for samples (..., N) and their bin indices (..., N)."""
    confidence, hits = (sample[name] for name in metric.arguments)
    gaps = confidence.double().new_zeros(*bins.shape[:-1], count)
    differences = hits.double() - confidence.double()
    values = (~differences.isnan()).sum(-1, keepdim=True)
    return gaps.scatter_add_(-1, bins, differences.nan_to_num()) / values


def without_nan(sample: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return vectors (K,) without the entries that are NaN in the first floating-point vector of shape (N,)."""
    absent = [vector.isnan() for vector in sample.values() if vector.is_floating_point()][:1]
    if not absent or not absent[0].any():
        return sample
    return {name: vector[~absent[0]] for name, vector in sample.items()}


def _bins(metric: Metric, confidence: Tensor) -> Tensor:
    """Return the bin index of each confidence, shape (N,); 0 for NaN."""
    if metric.bins is None:
        raise ValueError(f"`{metric.name}` has no bins")
    counted = ~confidence.isnan()
    bins = confidence.new_zeros(len(confidence), dtype=torch.int64)
    bins[counted] = metric.bins(confidence[counted])
    return bins
