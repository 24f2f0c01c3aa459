"""Batches for a hydra whose members see samples in orders of their own.

Axes: M members, P rows of a member's piece, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.data.encode import Reading
from hydractl.manifest.header import Tokenization
from hydractl.model_inputs import Inputs
from hydractl.training.accelerator import Share
from hydractl.training.feeding.feed import Feed, ItemFeed, Piece


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
    """Return inputs (P, ...) one after another on the batch axis; texts are filled up to the longest."""
    images = [part for part in parts if isinstance(part, torch.Tensor)]
    if not isinstance(how, Tokenization):
        return torch.cat(images)
    texts = [part for part in parts if not isinstance(part, torch.Tensor)]
    longest = max(part["input_ids"].shape[1] for part in texts)

    def filled(name: str, tensor: torch.Tensor) -> torch.Tensor:
        lacking = longest - tensor.shape[1]
        return F.pad(tensor, (0, lacking), value=how.pad_id if name == "input_ids" else 0)

    return {name: torch.cat([filled(name, part[name]) for part in texts]) for name in texts[0]}
