"""How sure is a measured number? Percentile bootstrap intervals, on the same resamples for every metric and every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydractl.manifest.report import Value
from hydractl.metrics.metric import Metric

BOUNDS = (0.025, 0.975)
DRAWN_AT_ONCE = 2**18  # indices: resamples are few at a time where samples are many


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How intervals are made.

    Attributes:
        resamples: How often to resample; 0 makes no intervals.
        seed: Of the draws.
    """

    resamples: int = 200
    seed: int = 0

    def draws(self, *counts: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield some resamples at a time: for each count n >= 1 indices (R, n), int64, drawn with replacement from 0..n-1.

        Sets of samples are drawn apart, so that each keeps its count. Equal seeds and counts give equal draws.
        """
        generator = torch.Generator().manual_seed(self.seed)
        at_once = max(1, DRAWN_AT_ONCE // sum(counts))
        for first in range(0, self.resamples, at_once):
            rows = [
                [torch.randint(n, (n,), generator=generator) for n in counts]
                for _ in range(first, min(first + at_once, self.resamples))
            ]
            yield tuple(torch.stack(drawn) for drawn in zip(*rows, strict=True))

    def values(self, metrics: Sequence[Metric], *sets: Mapping[str, Tensor]) -> dict[str, Value]:
        """Return metrics of samples, with the intervals of those that have one.

        Args:
            metrics: What to measure.
            sets: What the metrics read, (N,) each, by name; ID and OOD samples are sets of their own.
        """
        counts = [len(next(iter(samples.values()))) for samples in sets]
        sample = {name: vector for samples in sets for name, vector in samples.items()}
        found = {m.name: float(m.of(sample)) for m in metrics}
        spread: dict[str, list[Tensor]] = {m.name: [] for m in metrics if m.interval and self.resamples}
        read = {name for m in metrics if m.interval for name in m.reads}
        for indices in self.draws(*counts) if spread else ():
            drawn = {
                name: samples[name].index_select(0, index.flatten()).view(index.shape)
                for samples, index in zip(sets, indices, strict=True)
                for name in samples
                if name in read
            }
            for metric in metrics:
                if metric.name in spread:
                    spread[metric.name].append(torch.as_tensor(metric.of(drawn)))
        return {
            name: measured(value, torch.cat(spread[name]) if name in spread else None, count=sum(counts))
            for name, value in found.items()
        }


def measured(value: float, resampled: Tensor | None, *, count: int) -> Value:
    """Return a number with its 95 % percentile interval (Efron 1979), interpolated linearly between resamples.

    Args:
        value: The number.
        resampled: What it is on each resample, (R,); None makes no interval.
        count: How many samples it rests on.

    Raises:
        ValueError: If it is not finite on a resample.
    """
    if resampled is None:
        return Value(value=value, count=count)
    if not resampled.isfinite().all():
        first = int((~resampled.isfinite()).int().argmax())
        raise ValueError(
            f"the statistic of resample {first} is {float(resampled[first])}, so it has no interval"
        )
    low, high = torch.quantile(resampled.double(), torch.tensor(BOUNDS, dtype=torch.float64)).tolist()
    return Value(value=value, low=low, high=high, count=count)
