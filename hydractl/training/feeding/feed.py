"""Batches for training: drawn globally from (seed, epoch), of which each process takes its share.

Axes: N samples, P rows of a piece (of a member's, where those of a hydra see samples in orders of their own), M members, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.data.batches import epoch_order
from hydractl.data.datasets import Items
from hydractl.data.encode import Reading
from hydractl.manifest.header import Tokenization
from hydractl.model_inputs import WORDS, Inputs
from hydractl.training.accelerator import Share
from hydractl.training.feeding.mixup import Mix, Mixing, rows_read
from hydractl.training.feeding.sources import InputSource, Planned, open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a process computes at once.

    Attributes:
        inputs: Images (P, C, H, W), or what a text model takes by name, each (P, T).
        labels: Shape (P,), int64, the model's classes; or (P, classes), float32, each one's share of a sample that is mixed.
        first: The piece's first row in the batch.
        total: Rows of the whole batch.
        members: How many members of a hydra have samples of their own; inputs and labels then hold those of one after another.
        weight: What the piece's mean counts in the batch's; the weights of all pieces of all processes sum to 1.
    """

    inputs: Inputs
    labels: torch.Tensor
    first: int
    total: int
    weight: float
    members: int = 1

    @property
    def rows(self) -> range:
        """The piece's rows in the batch."""
        return range(self.first, self.first + len(self.labels) // self.members)


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
        labels: Shape (N,), int64, the model's classes; or (N, Q), which of Q labels apply, or the class of each word, below 0
            for none.
        batch_size: Samples in a batch, over all processes.
        seed: Of the order, and of mixing.
        mixing: How the samples of a batch are mixed, if they are; they then are images.
    """

    source: InputSource
    labels: torch.Tensor
    batch_size: int
    seed: int
    mixing: Mixing | None = None

    @classmethod
    def open(
        cls,
        items: Items,
        labels: Sequence[int] | torch.Tensor,
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
            labels=torch.as_tensor(labels),
            batch_size=batch_size,
            seed=seed,
        )

    def reseeded(self, seed: int) -> ItemFeed:
        """Return the same items in the order, and with the augmentation, of another seed."""
        return replace(self, source=self.source.reseeded(seed), seed=seed)

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has; the last may be smaller."""
        return -(-len(self.labels) // self.batch_size)

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of steps `start` to `stop` that `share` computes, a list a step."""
        per_epoch = self.steps_per_epoch
        while start < stop:
            epoch, begin = divmod(start, per_epoch)
            order = epoch_order(len(self.labels), seed=self.seed, epoch=epoch)
            batches = order.split(self.batch_size)[begin : min(per_epoch, begin + stop - start)]
            cuts = [_cut(self.labels[batch], share) for batch in batches]
            plan = [
                Planned(batch=batch, pieces=self._read(batch, cut))
                for batch, cut in zip(batches, cuts, strict=True)
            ]
            for step, cut, inputs in zip(plan, cuts, self.source.steps(plan, epoch=epoch), strict=True):
                samples = (
                    zip(inputs, (self.labels[piece] for piece in step.pieces), strict=True)
                    if self.mixing is None
                    else self._mixed(self.mixing.at(start, seed=self.seed), step.batch, cut, inputs[0])
                )
                yield [
                    Piece(
                        inputs=piece_inputs, labels=labels, first=first, total=len(step.batch), weight=weight
                    )
                    for (piece_inputs, labels), (first, _, weight) in zip(samples, cut, strict=True)
                ]
                start += 1

    def _read(self, batch: torch.Tensor, cut: Sequence[tuple[int, int, float]]) -> tuple[torch.Tensor, ...]:
        """Return the items of each piece; of mixed ones all together, with those that they are mixed with."""
        if self.mixing is not None:
            return (batch[rows_read(len(batch), cut)],)
        return tuple(batch[first:last] for first, last, _ in cut)

    def _mixed(
        self, mix: Mix, batch: torch.Tensor, cut: Sequence[tuple[int, int, float]], images: Inputs
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images and targets of each piece, given the images of all that `_read` names."""
        if not isinstance(images, torch.Tensor):
            raise TypeError("only images can be mixed")
        rows, labels = rows_read(len(batch), cut), self.labels[batch]
        for first, last, _ in cut:
            rows_of_piece = torch.arange(first, last)
            sides = rows_of_piece, len(batch) - 1 - rows_of_piece
            yield (
                mix.images(*(images[torch.searchsorted(rows, side)] for side in sides)),
                mix.targets(*(labels[side] for side in sides)),
            )


def _cut(labels: torch.Tensor, share: Share) -> list[tuple[int, int, float]]:
    """Return the rows (begin, end) and weights of a batch's pieces: the share of the batch's labels that they hold.

    A process without a row computes one that weighs nothing, since all must take part.
    """
    cut, total = [], len(labels)
    counts = (labels >= 0).view(total, -1).sum(1)
    for first, last in share.bounds(total):
        at = min(first, total - 1)
        cut.append((at, max(last, at + 1), int(counts[first:last].sum()) / max(1, int(counts.sum()))))
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFeeds(Feed):
    """Each member's batches side by side: pieces hold the inputs (M P, ...) and labels (M P, ...) of one after another.

    Attributes:
        feeds: One a member, of the same data and batch size.
        how: How items become inputs.
    """

    feeds: tuple[ItemFeed, ...]
    how: Reading

    @classmethod
    def of(cls, first: ItemFeed, members: int, how: Reading) -> MemberFeeds:
        """Return feeds of which member m's is the first one with a seed greater by m."""
        return cls(feeds=tuple(first.reseeded(first.seed + m) for m in range(members)), how=how)

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.feeds[0].steps_per_epoch

    @override
    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        for member_steps in zip(*(feed.steps(start, stop, share) for feed in self.feeds), strict=True):
            yield [self._side_by_side(pieces) for pieces in zip(*member_steps, strict=True)]

    def _side_by_side(self, pieces: Sequence[Piece]) -> Piece:
        first = pieces[0]
        return Piece(
            inputs=joined_inputs([piece.inputs for piece in pieces], self.how),
            labels=torch.cat([piece.labels for piece in pieces]),
            first=first.first,
            total=first.total,
            weight=first.weight,
            members=len(pieces),
        )


def joined_inputs(parts: Sequence[Inputs], how: Reading) -> Inputs:
    """Return inputs or features (P, ...) one after another on the batch axis; texts are filled up to the longest."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if tensors or not isinstance(how, Tokenization):
        return torch.cat(tensors)
    texts = [part for part in parts if not isinstance(part, torch.Tensor)]
    fillers = {"input_ids": how.pad_id, WORDS: -1}

    def filled(name: str) -> torch.Tensor:
        parts_of_name = [part[name] for part in texts]
        longest = max(tensor.shape[1] for tensor in parts_of_name)
        return torch.cat(
            [F.pad(x, (0, longest - x.shape[1]), value=fillers.get(name, 0)) for x in parts_of_name]
        )

    return {name: filled(name) for name in texts[0]}
