"""Batches for training: drawn globally from (seed, epoch), of which each process takes its share.

Axes: N samples, B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

import torch

from hydractl.data.batches import CACHE_BYTES, batches, epoch_order
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.training.augment import TENSOR_AUGMENTATIONS, EpochDraws

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydractl.data.images import ImageSet
    from hydractl.manifest import Preprocess
    from hydractl.training.engine import Share

_CHUNK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a process computes at once.

    Attributes:
        inputs: Shape (P, ...).
        labels: Shape (P,), int64, the model's classes.
        first: The piece's first row in the batch.
        total: Rows of the whole batch.
        weight: What the piece's mean counts in the batch's; the weights of all pieces of all processes sum to 1.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    first: int
    total: int
    weight: float


class Feed(Protocol):
    """Where the loop gets its batches from."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has; the last may be smaller."""
        ...

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of steps `start` to `stop` that `share` computes, a list a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFeed:
    """Batches of augmented images.

    Attributes:
        dataset: Where the images come from.
        labels: Shape (N,), int64, the model's classes.
        preprocessing: How the model wants them.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`.
        batch_size: Samples in a batch, over all processes.
        seed: Of the order and of the augmentation.
        held: Shape (N, C, H, W): all inputs before augmentation, where that is possible and they fit in memory.
    """

    dataset: ImageSet
    labels: torch.Tensor
    preprocessing: Preprocess
    augment: tuple[str, ...]
    batch_size: int
    seed: int
    held: torch.Tensor | None

    @classmethod
    def open(
        cls,
        dataset: ImageSet,
        labels: Sequence[int],
        preprocessing: Preprocess,
        *,
        augment: tuple[str, ...],
        batch_size: int,
        seed: int,
    ) -> ImageFeed:
        """Decode the data set once where that will do.

        Raises:
            DataError: If an image is missing or corrupt.
            UsageError: If an augmentation is unknown or given twice.
        """
        train_transform(preprocessing, augment)
        fits = 4 * prod(preprocessing.input_size) * len(dataset) <= CACHE_BYTES
        holds = fits and TENSOR_AUGMENTATIONS.issuperset(augment)
        return cls(
            dataset=dataset,
            labels=torch.tensor(labels),
            preprocessing=preprocessing,
            augment=augment,
            batch_size=batch_size,
            seed=seed,
            held=decode(dataset, preprocessing) if holds else None,
        )

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has; the last may be smaller."""
        return -(-len(self.dataset) // self.batch_size)

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of steps `start` to `stop` that `share` computes, a list a step."""
        per_epoch = self.steps_per_epoch
        while start < stop:
            epoch, begin = divmod(start, per_epoch)
            end = min(per_epoch, begin + stop - start)
            order = epoch_order(len(self.dataset), seed=self.seed, epoch=epoch)
            plan = [
                self._plan(order[b * self.batch_size : (b + 1) * self.batch_size], share)
                for b in range(begin, end)
            ]
            indices = torch.cat([piece for step in plan for piece, *_ in step])
            inputs = self._inputs(indices, epoch, sizes=[len(piece) for step in plan for piece, *_ in step])
            for step in plan:
                yield [
                    Piece(
                        inputs=next(inputs),
                        labels=self.labels[piece],
                        first=first,
                        total=total,
                        weight=weight,
                    )
                    for piece, first, total, weight in step
                ]
            start += end - begin

    def _plan(self, batch: torch.Tensor, share: Share) -> list[tuple[torch.Tensor, int, int, float]]:
        """Cut a batch; a process without a row computes one that weighs nothing, since all must take part."""
        total = len(batch)
        plan = []
        for first, last in share.bounds(total):
            weight = (last - first) / total
            at = min(first, total - 1)
            plan.append((batch[at : max(last, at + 1)], at, total, weight))
        return plan

    def _inputs(self, indices: torch.Tensor, epoch: int, *, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield the augmented inputs of `indices`, `sizes` of them at a time."""
        if self.held is not None:
            draws = EpochDraws.of(len(self.dataset), self.preprocessing, seed=self.seed, epoch=epoch)
            for chosen in indices.split(list(sizes)):
                yield draws.apply(self.held[chosen], chosen, self.augment)
            return
        transform = train_transform(self.preprocessing, self.augment).at(seed=self.seed, epoch=epoch)
        stream = batches(self.dataset, transform, batch_size=max(sizes), indices=indices)
        waiting = torch.empty(0)
        for size in sizes:
            while len(waiting) < size:
                found = next(stream).inputs
                waiting = torch.cat([waiting, found]) if len(waiting) else found
            yield waiting[:size]
            waiting = waiting[size:]


def decode(dataset: ImageSet, preprocessing: Preprocess) -> torch.Tensor:
    """Return all images as the model's evaluation wants them, (N, C, H, W)."""
    transform = eval_transform(preprocessing)
    return torch.cat([batch.inputs for batch in batches(dataset, transform, batch_size=_CHUNK)])
