"""Batches for training: drawn globally from (seed, epoch), of which each process takes its share.

Axes: N samples, P rows of a piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hydractl.data.batches import epoch_order
from hydractl.data.inputs import Reading
from hydractl.data.items import Items
from hydractl.inputs import Inputs
from hydractl.training.engine import Share
from hydractl.training.feeding.sources import Planned, Source, open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a process computes at once.

    Attributes:
        inputs: Images (P, C, H, W), or what a text model takes by name, each (P, T).
        labels: Shape (P,), int64, the model's classes.
        first: The piece's first row in the batch.
        total: Rows of the whole batch.
        weight: What the piece's mean counts in the batch's; the weights of all pieces of all processes sum to 1.
    """

    inputs: Inputs
    labels: torch.Tensor
    first: int
    total: int
    weight: float

    @property
    def rows(self) -> range:
        """The piece's rows in the batch."""
        return range(self.first, self.first + len(self.labels))


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
class ItemFeed:
    """Batches of a data set's items, each item once an epoch.

    Attributes:
        source: Makes inputs of items.
        labels: Shape (N,), int64, the model's classes.
        batch_size: Samples in a batch, over all processes.
        seed: Of the order.
    """

    source: Source
    labels: torch.Tensor
    batch_size: int
    seed: int

    @classmethod
    def open(
        cls,
        items: Items,
        labels: Sequence[int],
        how: Reading,
        *,
        augment: tuple[str, ...],
        batch_size: int,
        seed: int,
    ) -> ItemFeed:
        """Make ready what can be made ready once.

        Raises:
            DataError: If an item cannot be read.
            CheckpointError: If the model's tokenizer is missing or unfit.
            UsageError: If an augmentation is unknown, given twice, or not for such items.
        """
        return cls(
            source=open_source(items, how, augment=augment, seed=seed),
            labels=torch.tensor(labels),
            batch_size=batch_size,
            seed=seed,
        )

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has; the last may be smaller."""
        return -(-len(self.labels) // self.batch_size)

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of steps `start` to `stop` that `share` computes, a list a step."""
        per_epoch = self.steps_per_epoch
        while start < stop:
            epoch, begin = divmod(start, per_epoch)
            end = min(per_epoch, begin + stop - start)
            order = epoch_order(len(self.labels), seed=self.seed, epoch=epoch)
            batches = order.split(self.batch_size)[begin:end]
            cuts = [_cut(len(batch), share) for batch in batches]
            plan = [
                Planned(batch=batch, pieces=tuple(batch[first:last] for first, last, _ in cut))
                for batch, cut in zip(batches, cuts, strict=True)
            ]
            for step, cut, inputs in zip(plan, cuts, self.source.steps(plan, epoch=epoch), strict=True):
                yield [
                    Piece(
                        inputs=found,
                        labels=self.labels[piece],
                        first=first,
                        total=len(step.batch),
                        weight=weight,
                    )
                    for found, piece, (first, _, weight) in zip(inputs, step.pieces, cut, strict=True)
                ]
            start += end - begin


def _cut(total: int, share: Share) -> list[tuple[int, int, float]]:
    """Return the rows (begin, end) and weights of a batch's pieces.

    A process without a row computes one that weighs nothing, since all must take part.
    """
    cut = []
    for first, last in share.bounds(total):
        at = min(first, total - 1)
        cut.append((at, max(last, at + 1), (last - first) / total))
    return cut
