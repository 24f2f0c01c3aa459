"""Where training's inputs come from: images, augmented anew each epoch, or texts.

What needs no image library is done on tensors, a batch at a time: the same changes as in `data.preprocess`.

Axes: N samples, B batch, C channels, H height, W width, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Protocol

import torch
from typing_extensions import override

from hydractl.data.batches import CACHE_BYTES, batches
from hydractl.data.datasets import ImageSet, Items, TextSet
from hydractl.data.encode import Reading, check_augment, of_kind
from hydractl.data.preprocess import (
    SHIFT_FRACTION,
    SHIFT_PROBABILITY,
    eval_transform,
    sample_seed,
    train_transform,
)
from hydractl.data.tokenize import Tokens
from hydractl.data.words import tokens_of
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.model_inputs import Inputs

_CHUNK = 256
TENSOR_AUGMENTATIONS = frozenset({"flip", "shift"})
_STREAM = -2
"""Offset that separates these seeds from those of steps, epochs and samples."""


class Planned(NamedTuple):
    """One step: the whole batch's items, and those of the pieces that are computed here; positions, int64."""

    batch: torch.Tensor
    pieces: tuple[torch.Tensor, ...]


class InputSource(Protocol):
    """Makes inputs of a data set's items."""

    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        """Yield the inputs of each step's pieces; they hang on the items, the epoch and the step's batch alone."""
        ...

    def reseeded(self, seed: int) -> InputSource:
        """Return the same items with the augmentation of another seed; itself where nothing is random."""
        del seed
        return self


def open_source(items: Items, how: Reading, *, augment: tuple[str, ...], seed: int) -> InputSource:
    """Return a source of inputs for a model that reads items so.

    Args:
        items: The training data.
        how: Of the model.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`, for images.
        seed: Of the augmentation.

    Raises:
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or unfit.
        UsageError: If an augmentation is unknown, given twice, or not for such items.
    """
    check_augment(how, augment)
    if isinstance(how, Tokenization):
        texts = of_kind(items, TextSet)
        return TextSource(tokens=tokens_of(texts, how))
    return ImageSource.open(of_kind(items, ImageSet), how, augment=augment, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource(InputSource):
    """Tokenised texts. All pieces of a batch are as long as its longest text, so that cutting a batch changes nothing."""

    tokens: Tokens

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        lengths = self.tokens.lengths
        for step in plan:
            longest = int(lengths[step.batch].max())
            yield [self.tokens.batch(piece, length=longest) for piece in step.pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource(InputSource):
    """Augmented images.

    Attributes:
        dataset: Where the images come from.
        preprocessing: How the model wants them.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`.
        seed: Of the augmentation.
        cached_inputs: Shape (N, C, H, W): all inputs before augmentation, where that is possible and they fit in memory.
    """

    dataset: ImageSet
    preprocessing: Preprocess
    augment: tuple[str, ...]
    seed: int
    cached_inputs: torch.Tensor | None

    @classmethod
    def open(
        cls, dataset: ImageSet, preprocessing: Preprocess, *, augment: tuple[str, ...], seed: int
    ) -> ImageSource:
        """Decode the data set once where that will do.

        Raises:
            DataError: If an image is missing or corrupt.
        """
        fits = 4 * prod(preprocessing.input_size) * len(dataset) <= CACHE_BYTES
        cacheable = fits and TENSOR_AUGMENTATIONS.issuperset(augment)
        return cls(
            dataset=dataset,
            preprocessing=preprocessing,
            augment=augment,
            seed=seed,
            cached_inputs=_decoded(dataset, preprocessing) if cacheable else None,
        )

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        indices = torch.cat([piece for step in plan for piece in step.pieces])
        inputs = self._inputs(indices, epoch, sizes=[len(piece) for step in plan for piece in step.pieces])
        for step in plan:
            yield [next(inputs) for _ in step.pieces]

    @override
    def reseeded(self, seed: int) -> ImageSource:
        return replace(self, seed=seed)

    def _inputs(self, indices: torch.Tensor, epoch: int, *, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield the augmented inputs of `indices`, `sizes` of them at a time."""
        if self.cached_inputs is not None:
            draws = EpochDraws.of(len(self.dataset), self.preprocessing, seed=self.seed, epoch=epoch)
            for chosen in indices.split(list(sizes)):
                yield draws.apply(self.cached_inputs[chosen], chosen, self.augment)
            return
        transform = train_transform(self.preprocessing, self.augment).at(seed=self.seed, epoch=epoch)
        stream = batches(self.dataset, transform, batch_size=max(sizes), indices=indices)
        waiting = torch.empty(0)
        for size in sizes:
            while len(waiting) < size:
                batch_inputs = next(stream).inputs
                waiting = torch.cat([waiting, batch_inputs]) if len(waiting) else batch_inputs
            yield waiting[:size]
            waiting = waiting[size:]


def _decoded(dataset: ImageSet, preprocessing: Preprocess) -> torch.Tensor:
    """Return all images as the model's evaluation wants them, (N, C, H, W)."""
    return torch.cat(
        [batch.inputs for batch in batches(dataset, eval_transform(preprocessing), batch_size=_CHUNK)]
    )


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
