"""What attention needs beside the tokens: masks, angles, biases of the scores.

Axes: M members, N = M B batch, T tokens, D width, H heads, K head width, P positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from typing_extensions import override

from hydractl.families.batched_members import fixed
from hydractl.families.stream import computed, share
from hydractl.model_inputs import split_batch


class AttentionExtras(NamedTuple):
    """What attention needs beside the tokens. `mask` is a sample's own; the others are a member's own: G is 1 or M.

    Attributes:
        mask: (N, 1, 1 or T, T), True where a query may look at a key.
        rope: (G, 2, 1 or H, T, K), cosines and sines of the rotary position embedding; H as before pruning.
        bias: (G, H, T, T), added to the scaled scores; H as before pruning. What layers share; see `HeadBias` for the rest.
        table: (G, P, D), whatever else a family's attention looks up.
        rows: (G, T, T), which of the P each query and key look up.
    """

    mask: torch.Tensor | None = None
    rope: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    def split(self, members: int) -> list[AttentionExtras]:
        """Return each member's share."""
        masks = [None] * members if self.mask is None else split_batch(self.mask, members)
        # by name: dynamo of torch 2.7 and 2.8 slices no NamedTuple
        shared_fields = (self.rope, self.bias, self.table, self.rows)
        return [
            AttentionExtras(mask, *(None if x is None else share(x, m) for x in shared_fields))
            for m, mask in enumerate(masks)
        ]


NOTHING = AttentionExtras()


class QuietDropout(nn.Dropout):
    """Dropout that is not called where it drops nothing: in evaluation, unless somebody listens."""

    @override
    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        if self.training or self._forward_hooks or self._forward_pre_hooks:
            dropped: torch.Tensor = super().__call__(computed(input))
            return dropped
        return input


class SharedDropout(nn.Dropout):
    """Dropout of what has no axis of samples, as a table of positions: all samples of a step miss the same."""


class HeadBias(nn.Module):
    """What a layer adds to its scaled scores, which is the heads' own: it is cut with them."""

    def forward(self) -> torch.Tensor:
        """Return (G, H, T, T) of the heads that are kept, G = 1; or of those of M members, G = M."""
        raise NotImplementedError

    def select(self, positions: Sequence[int]) -> HeadBias:
        """Return a copy with only the heads at these positions among the kept, weights sliced."""
        raise NotImplementedError


def looked_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return a bias (1, H, T, T) of a table (P, H), and for each query and key the row (T, T) that they look up."""
    return table[index].movedim(-1, 0).unsqueeze(0)


class PositionBias(HeadBias):
    """A bias by relative position; see `looked_up`."""

    index: torch.Tensor

    def __init__(self, table: nn.Parameter, index: torch.Tensor) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("index", index, persistent=False)

    @override
    def forward(self) -> torch.Tensor:
        return looked_up(self.table, self.index)

    @override
    def select(self, positions: Sequence[int]) -> PositionBias:
        return PositionBias(nn.Parameter(self.table.detach()[:, list(positions)]), self.index)


class StackedBias(HeadBias):
    """What M members add to their scores, (M, H, T, T); as it hangs on weights alone, it is computed once."""

    def __init__(self, biases: torch.Tensor) -> None:
        super().__init__()
        self.biases = fixed(biases)

    @override
    def forward(self) -> torch.Tensor:
        return self.biases
