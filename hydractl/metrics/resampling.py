"""Bootstrap intervals of the metrics, fast: what each resample recomputes is a few sums over prepared vectors.

On the identity resample every statistic here equals its metric; `tests` hold them to that, and on random resamples
too. ID and OOD samples are drawn apart, so both keep their counts. All intervals of a report use the same seed:
rows are compared on the same resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hydractl.manifest import Value
from hydractl.metrics.intervals import bootstrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

BINS = 15
TPR = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """How intervals are made.

    Attributes:
        resamples: How often to resample; 0 makes no intervals.
        seed: Of the draws.
    """

    resamples: int = 200
    seed: int = 0

    def value(
        self,
        found: float,
        count: int,
        statistic: Callable[[Tensor, Tensor], float] | None,
        *,
        others: int = 0,
    ) -> Value:
        """Return a measured number with its 95 % interval.

        Args:
            found: The number.
            count: How many samples it rests on; with `others`, how many are ID.
            statistic: Maps indices of samples and of others to the number; None makes no interval.
            others: How many OOD samples it rests on besides.
        """
        if statistic is None or self.resamples == 0:
            return Value(value=found, count=count + others)
        generator = torch.Generator().manual_seed(self.seed)

        def resampled(index: Tensor) -> float:
            second = torch.randint(max(others, 1), (others,), generator=generator)
            return statistic(index, second)

        low, high = bootstrap(count, resampled, resamples=self.resamples, generator=generator)
        return Value(value=found, low=low, high=high, count=count + others)


def labelled_statistics(log_probs: Tensor, labels: Tensor) -> Mapping[str, Callable[[Tensor, Tensor], float]]:
    """Return the metrics of labelled data as functions of sample indices.

    Args:
        log_probs: Shape (N, C), float64.
        labels: Shape (N,), int64.
    """
    probs = log_probs.exp()
    predicted = probs.argmax(1, keepdim=True)
    correct = (predicted[:, 0] == labels).double()
    confidence = probs.gather(1, predicted)[:, 0].clamp(max=1.0)
    surprise = -log_probs.gather(1, labels[:, None])[:, 0]
    own = probs.gather(1, labels[:, None])[:, 0]
    # sum_c (p_c - y_c)^2 = sum_c p_c^2 - 2 p_y + 1
    squared = probs.square().sum(1) - 2 * own + 1
    gap = correct - confidence
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float32)
    place = torch.bucketize(confidence.float(), edges, right=True) - 1

    def binned(index: Tensor, _: Tensor) -> float:
        sums = torch.bincount(place[index], weights=gap[index], minlength=BINS + 1)
        return float(sums.abs().sum() / len(index))

    def binned_by_count(index: Tensor, _: Tensor) -> float:
        order = torch.argsort(confidence[index], stable=True)
        parts = torch.tensor_split(gap[index][order], BINS)
        return float(torch.stack([part.sum().abs() for part in parts]).sum() / len(index))

    return {
        "accuracy": lambda index, _: float(correct[index].mean()),
        "brier": lambda index, _: float(squared[index].mean()),
        "nll": lambda index, _: float(surprise[index].mean()),
        "ece": binned,
        "adaptive_ece": binned_by_count,
    }


def ranking_statistics(
    id_scores: Tensor, ood_scores: Tensor
) -> Mapping[str, Callable[[Tensor, Tensor], float]]:
    """Return AUROC, FPR95 and AUPR as functions of ID and OOD indices.

    Scores are ranked once; a resample only counts how often each rank was drawn.

    Args:
        id_scores: Shape (N,), higher is more OOD.
        ood_scores: Shape (N',).
    """
    ranks = torch.unique(torch.cat([id_scores, ood_scores]), return_inverse=True)[1]
    # rank 0 is the strangest sample
    ranks = ranks.max() - ranks
    id_ranks, ood_ranks = ranks[: len(id_scores)], ranks[len(id_scores) :]
    size = int(ranks.max()) + 1

    def drawn(index: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return (
            torch.bincount(id_ranks[index], minlength=size),
            torch.bincount(ood_ranks[second], minlength=size),
        )

    def area(index: Tensor, second: Tensor) -> float:
        ids, oods = drawn(index, second)
        # an OOD sample beats every ID sample of a later rank, and half of those of its own
        beaten = 2 * (len(index) - ids.cumsum(0)) + ids
        return int((oods * beaten).sum()) / (2 * len(index) * len(second))

    def flagged(index: Tensor, second: Tensor) -> float:
        ids, oods = drawn(index, second)
        first = int((oods.cumsum(0).double() / len(second) >= TPR).int().argmax())
        return int(ids[: first + 1].sum()) / len(index)

    def precision(index: Tensor, second: Tensor) -> float:
        ids, oods = drawn(index, second)
        caught = oods.cumsum(0)
        # nothing drawn yet: precision has no value there, and no weight
        flagged_so_far = (caught + ids.cumsum(0)).clamp(min=1)
        return float((oods * (caught.double() / flagged_so_far)).sum()) / len(second)

    return {"auroc": area, "fpr95": flagged, "aupr": precision}
