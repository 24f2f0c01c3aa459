"""Augmentations that need no image library: the same changes as in `data.preprocess`, on tensors, a batch at a time.

Axes: N samples, B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hydractl.data.preprocess import SHIFT_FRACTION, SHIFT_PROBABILITY, sample_seed

if TYPE_CHECKING:
    from hydractl.manifest.header import Preprocess

TENSOR_AUGMENTATIONS = frozenset({"flip", "shift"})
_STREAM = -2
"""Keeps these seeds apart from those of steps, epochs and samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDraws:
    """What befalls each sample of a data set in one epoch; row i hangs on (seed, epoch, i) and the set's size.

    Attributes:
        flip: Shape (N,), whether the image is mirrored.
        down: Shape (N,), int64, by how many pixels it moves down.
        right: Shape (N,), int64, by how many it moves to the right.
        black: Shape (C, 1, 1), what moves in.
    """

    flip: torch.Tensor
    down: torch.Tensor
    right: torch.Tensor
    black: torch.Tensor

    @classmethod
    def of(cls, count: int, preprocessing: Preprocess, *, seed: int, epoch: int) -> EpochDraws:
        """Draw for `count` samples."""
        generator = torch.Generator().manual_seed(sample_seed(_STREAM, seed, epoch))
        flip, move, down, right = torch.rand(4, count, generator=generator)
        height, width = preprocessing.input_size[1:]
        moves = move < SHIFT_PROBABILITY
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        return cls(
            flip=flip < 0.5,
            down=_pixels(down, height) * moves,
            right=_pixels(right, width) * moves,
            black=((0 - mean) / std)[:, None, None],
        )

    def apply(self, inputs: torch.Tensor, indices: torch.Tensor, augment: tuple[str, ...]) -> torch.Tensor:
        """Return augmented inputs.

        Args:
            inputs: Shape (B, C, H, W), normalised, may be changed in place.
            indices: Shape (B,), the samples' positions in the data set.
            augment: Names from `TENSOR_AUGMENTATIONS`, applied in alphabetical order as `data.preprocess` has it.
        """
        if "flip" in augment:
            mirrored = self.flip[indices]
            inputs[mirrored] = inputs[mirrored].flip(-1)
        if "shift" in augment:
            down, right = self.down[indices], self.right[indices]
            moved = (down != 0) | (right != 0)
            inputs[moved] = shifted(inputs[moved], down[moved], right[moved], self.black)
        return inputs


def shifted(
    inputs: torch.Tensor, down: torch.Tensor, right: torch.Tensor, fill: torch.Tensor
) -> torch.Tensor:
    """Return every image moved by its own whole number of pixels.

    Args:
        inputs: Shape (B, C, H, W).
        down: Shape (B,), int64, negative is up.
        right: Shape (B,), int64, negative is left.
        fill: Shape (C, 1, 1), what moves in.
    """
    height, width = inputs.shape[-2:]
    rows = torch.arange(height) - down[:, None]
    columns = torch.arange(width) - right[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    batch = torch.arange(len(inputs))[:, None, None]
    moved = inputs.permute(0, 2, 3, 1)[
        batch, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    ]
    return torch.where(inside[:, None], moved.permute(0, 3, 1, 2), fill)


def _pixels(uniform: torch.Tensor, side: int) -> torch.Tensor:
    """Turn numbers in [0, 1) into whole pixels, at most `SHIFT_FRACTION` of the side either way."""
    return ((2 * uniform - 1) * SHIFT_FRACTION * side).round().long()
