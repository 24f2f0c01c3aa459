"""Batches for a network that sees several images at once: see `research.methods.mimo`.

Axes: M slots, P rows of a piece, R repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from typing_extensions import override

from hydractl.data.preprocess import sample_seed
from hydractl.training.accelerator import Share
from hydractl.training.feeding.feed import Feed, ItemFeed, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoFeed(Feed):
    """Pieces hold images (M R P, ...) and labels (M R P,) of one slot after another: what each slot sees, drawn anew each step.

    As `MIMOBatchFormat` of torch-uncertainty: every image R times, a share of rows the same in all slots, the other rows
    shuffled for each.

    Attributes:
        feed: Where images come from.
        slots: M.
        repeat: R.
        rho: The share of rows that are the same.
    """

    feed: ItemFeed
    slots: int
    repeat: int
    rho: float

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.feed.steps_per_epoch

    @override
    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        for step, pieces in enumerate(self.feed.steps(start, stop, share), start):
            yield [self._side_by_side(piece, step) for piece in pieces]

    def _side_by_side(self, piece: Piece, step: int) -> Piece:
        generator = torch.Generator().manual_seed(sample_seed(self.feed.seed, step, piece.first))
        rows = self._rows(len(piece.labels), generator).flatten()
        if not isinstance(piece.inputs, torch.Tensor):
            raise TypeError("only images can stand side by side")
        return Piece(
            inputs=piece.inputs[rows],
            labels=piece.labels[rows],
            first=piece.first * self.repeat,
            total=piece.total * self.repeat,
            weight=piece.weight,
            members=self.slots,
        )

    def _rows(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Return which of so many images each slot sees, (M, R P)."""
        every = torch.arange(size).repeat(self.repeat)
        every = every[torch.randperm(len(every), generator=generator)]
        shuffled_count = int(len(every) * (1 - self.rho))
        shuffled = [
            every[:shuffled_count][torch.randperm(shuffled_count, generator=generator)]
            for _ in range(self.slots)
        ]
        return torch.stack([torch.cat([slot_rows, every[shuffled_count:]]) for slot_rows in shuffled])
