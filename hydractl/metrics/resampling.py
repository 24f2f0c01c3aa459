"""Bootstrap intervals of metrics and their differences, on the same resamples for every metric and row.

Most are percentile intervals (Efron 1979). These are wrong for calibration errors, which sum absolute values: the error
of a resample exceeds that of the sample, as the latter exceeds the true error. Let such an error be theta = sum |g_b|,
with measured gaps g_b of its bins, and let Z_b be the deviations of a resample's gaps from these. Then

- theta is at most the measured error - sum sign(g_b) Z_b, because the absolute value is convex; - theta is at least the
measured error - (sum sign(g_b) Z_b over bins with a clear gap + sum |Z_b| over the others): the derivative of the sum in
the direction of Z, as Fang and Santos (2019, Inference on Directionally Differentiable Functions) estimate it. A gap is
clear beyond sqrt(ln N) of its standard deviations (Andrews and Soares 2010).

Quantiles of both bounds over the resamples give the interval. It contains the measured error, includes 0 if the data are
compatible with perfect calibration, and is conservative if some gaps are neither clear nor zero. Bins are those of the
sample.
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
DRAWN_AT_ONCE = 2**18  # indices: resamples are few at a time where samples are many


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricEstimate:
    """A metric's value with bounds of the true value from each resample.

    Attributes:
        value: Measured value.
        count: Number of samples.
        low: Lower bounds, (R,); None without an interval.
        high: Upper bounds, (R,). For a percentile interval both equal the value on the resample.
    """

    value: float
    count: int | None
    low: Tensor | None = None
    high: Tensor | None = None

    def to_value(self) -> Value:
        """Return the value with its 95 % interval from linearly interpolated quantiles; the interval contains the value."""
        if self.low is None or self.high is None:
            return Value(value=self.value, count=self.count)
        low, high = (
            float(torch.quantile(bounds.double(), bound))
            for bounds, bound in zip((self.low, self.high), BOUNDS, strict=True)
        )
        return Value(value=self.value, low=min(low, self.value), high=max(high, self.value), count=self.count)

    def difference(self, subtrahend: MetricEstimate) -> MetricEstimate | None:
        """Return the difference to another value on the same resamples; None if one has no interval."""
        if self.low is None or self.high is None or subtrahend.low is None or subtrahend.high is None:
            return None
        return MetricEstimate(
            value=self.value - subtrahend.value,
            count=self.count,
            low=self.low - subtrahend.high,
            high=self.high - subtrahend.low,
        )


def mean_of(numbers: Sequence[MetricEstimate]) -> MetricEstimate:
    """Return the mean of values on the same resamples of the ID set; its count is the number of sets, not samples."""
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
        """Yield resamples in chunks: for each count n >= 1 indices (R, n), int64, drawn with replacement from 0..n-1.

        Sets are resampled independently, so that each keeps its count. Equal seeds, counts and names give equal indices;
        those of the first set are the same for every name, so that the ID set has the same resamples with each OOD set.
        `labels` values of a sample make a chunk so much smaller, and change no index.
        """
        # torch's generator looks at 32 bits of a seed
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
        """Return the values of metrics, with intervals for those that have one.

        Args:
            metrics: Metrics to compute.
            sets: Arguments of the metrics, each (N,), by name; ID and OOD samples are separate sets.
            name: Name of the OOD set, which selects its resamples.
            labels: How many values follow each other for each sample, Q; they are (N Q,) then, and drawn together. Of words
                that a text has not they are not-a-number, and do not count.
        """
        counts = [len(next(iter(samples.values()))) // labels for samples in sets]
        within = torch.arange(labels)
        sample = {name: vector for samples in sets for name, vector in samples.items()}
        counted = present(sample)
        point_estimates = {m.name: float(m.of(counted)) for m in metrics}
        spread: dict[str, list[Tensor]] = {m.name: [] for m in metrics if m.interval and self.resamples}
        bins = {m.name: _bins(m, sample[m.reads[0]]) for m in metrics if m.bins and m.name in spread}
        read = {name for m in metrics if m.interval for name in m.reads}
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
        resampled: Values on the resamples, (R,); None for no interval.
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
    """Return a calibration error with the interval described above, clipped to [0, 1].

    Args:
        value: Sum of the absolute values of `gaps`.
        gaps: Gap of each bin, (B,): the mean over all samples of hit minus confidence, with 0 for samples in other bins.
        resampled: Gaps of each resample, (R, B).
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
    """Return the gaps (..., B) of a calibration error for samples (..., N) and their bins."""
    confidence, hits = (sample[name] for name in metric.reads)
    gaps = confidence.double().new_zeros(*bins.shape[:-1], count)
    differences = hits.double() - confidence.double()
    values = (~differences.isnan()).sum(-1, keepdim=True)
    return gaps.scatter_add_(-1, bins, differences.nan_to_num()) / values


def present(sample: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the values (K,) that are there of vectors (N,), of which the same ones are not-a-number."""
    absent = [vector.isnan() for vector in sample.values() if vector.is_floating_point()][:1]
    if not absent or not absent[0].any():
        return sample
    return {name: vector[~absent[0]] for name, vector in sample.items()}


def _bins(metric: Metric, confidence: Tensor) -> Tensor:
    """Return the bin of each confidence (N,); those that are not-a-number are in the first."""
    if metric.bins is None:
        raise ValueError(f"`{metric.name}` has no bins")
    counted = ~confidence.isnan()
    bins = confidence.new_zeros(len(confidence), dtype=torch.int64)
    bins[counted] = metric.bins(confidence[counted])
    return bins
