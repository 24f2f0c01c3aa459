"""Where training's inputs come from: images, augmented anew each epoch, or texts.

Axes: N samples, C channels, H height, W width, T tokens.
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
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.data.tokenize import Tokens, tokenize
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.model_inputs import Inputs
from hydractl.training.feeding.augment import TENSOR_AUGMENTATIONS, EpochDraws

_CHUNK = 256


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
        return TextSource(tokens=tokenize(texts.texts, how, where=texts.name))
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
