"""Training batches: drawn, augmented or mixed, and cut into the pieces of each process.

All processes draw the same order from (seed, epoch).

Flips and shifts are computed on tensors, batch by batch, with the result of `data.preprocess`. Mixing is
mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), as in timm's `Mixup`: each batch is mixed with its
reverse, row i with row B - 1 - i.

Axes: N samples, B batch, P rows of a piece (of one member, if members of a hydra have different batches), R
loaded rows, M members, C channels, H height, W width, L classes, Q labels or words of a sample, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name
from typing_extensions import override

from hydractl.data.batches import CACHE_BYTES, batches, check_augment, epoch_order
from hydractl.data.datasets import Dataset, ImageSet, ItemPreprocess, TextSet, of_kind
from hydractl.data.preprocess import (
    SHIFT_FRACTION,
    SHIFT_PROBABILITY,
    eval_transform,
    sample_seed,
    train_transform,
)
from hydractl.data.tokenize import Tokens
from hydractl.data.words import tokens_of
from hydractl.errors import UsageError
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.model_inputs import WORDS, Inputs
from hydractl.training.accelerator import Share
from hydractl.training.recipe import Recipe

TWO_SHARES = 2
"""Number of mixing methods if both are enabled."""
SWITCH_PROBABILITY = 0.5
"""Probability of CutMix if both mixing methods are enabled, as in timm's `Mixup`; 1 would disable mixup."""
_MIXING_STREAM = -3
"""First part of the seeds of mixing. It separates them from the seeds of steps, augmentation, epochs and
samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Mixing parameters of one batch.

    Attributes:
        weight: Weight of the sample itself, in [0, 1]. Its partner has weight 1 - `weight`.
        classes: Number of classes, L.
        box: Rows and columns of the pixels that are taken from the partner; None if images are blended.
    """

    weight: float
    classes: int
    box: tuple[slice, slice] | None = None

    def images(self, images: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return mixed images, shape (P, C, H, W), from images and their partners of the same shape."""
        if self.box is None:
            return images * self.weight + partners * (1 - self.weight)
        mixed = images.clone()
        mixed[..., *self.box] = partners[..., *self.box]
        return mixed

    def targets(self, labels: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return the mixed target of each sample as class fractions, float32.

        Args:
            labels: Shape (P,) or (P, Q), int64.
            partners: Labels of the partners, the same shape.

        Returns:
            Shape (P, L), or (P, Q, L). The last axis sums to 1.
        """
        first, second = (F.one_hot(labels, self.classes).float() for labels in (labels, partners))
        return first * self.weight + second * (1 - self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """Mixing settings of a training.

    At least one of `mixup` and `cutmix` is given.

    Attributes:
        mixup: Value A for the weights, which are drawn from Beta(A, A); None disables mixup.
        cutmix: Value A for 1 - area of the box / area of the image, drawn from Beta(A, A); None disables
            CutMix.
        size: Height and width of the images.
        classes: Number of classes.
    """

    mixup: float | None
    cutmix: float | None
    size: tuple[int, int]
    classes: int

    @classmethod
    def of(cls, recipe: Recipe, preprocess: ItemPreprocess, *, classes: int) -> Mixing | None:
        """Return the mixing settings of a recipe, or None if the recipe does not mix.

        Args:
            recipe: The recipe.
            preprocess: Preprocessing of the model.
            classes: Number of classes.

        Raises:
            UsageError: If the recipe mixes but the model reads texts.
        """
        requested = {name: value for name in ("mixup", "cutmix") if (value := getattr(recipe, name))}
        if not requested:
            return None
        if isinstance(preprocess, Tokenization):
            name, value = next(iter(requested.items()))
            none = " ".join(f"--{name} 0" for name in requested)
            raise UsageError(
                f"`--{name} {value:g}` is for images, but the model reads texts: tokens cannot be mixed",
                hint=f"leave it out, or add `{none}`; for texts use `--label-smoothing` and `--dropout`",
            )
        _, height, width = preprocess.input_size
        return cls(mixup=recipe.mixup, cutmix=recipe.cutmix, size=(height, width), classes=classes)

    def at(self, step: int, *, seed: int) -> Mix:
        """Return the mixing parameters of a step (from 0), which depend only on the seed and the step."""
        draws = np.random.default_rng(sample_seed(_MIXING_STREAM, seed, step))
        either = [(cuts, a) for cuts, a in ((False, self.mixup), (True, self.cutmix)) if a is not None]
        cuts, alpha = either[len(either) == TWO_SHARES and draws.random() < SWITCH_PROBABILITY]
        weight = float(draws.beta(alpha, alpha))
        if not cuts:
            return Mix(weight=weight, classes=self.classes)
        ratio = sqrt(1 - weight)
        rows, columns = (_span(draws, side, int(side * ratio)) for side in self.size)
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mix(weight=1 - area / prod(self.size), classes=self.classes, box=(rows, columns))


def rows_read(total: int, cut: Iterable[tuple[int, int, float]]) -> torch.Tensor:
    """Return the rows of a batch for some pieces: the rows of the pieces and the mixing partners.

    Args:
        total: Number of rows of the batch.
        cut: First row, end row and weight of each piece.

    Returns:
        Shape (R,), int64, increasing.
    """
    rows = torch.cat([torch.arange(first, last) for first, last, _ in cut])
    return cast("torch.Tensor", torch.cat([rows, total - 1 - rows]).unique())


def _span(draws: np.random.Generator, side: int, length: int) -> slice:
    """Return an interval of `length` pixels around a random pixel, clipped to an image side of `side` pixels."""
    centre = int(draws.integers(side))
    return slice(max(centre - length // 2, 0), min(centre + (length + 1) // 2, side))


_CHUNK = 256
"""Batch size for decoding the cached images. Chosen by hand; 512 would double the memory of one batch and not
change the result."""
TENSOR_AUGMENTATIONS = frozenset({"flip", "shift"})
"""Augmentations that are computed on tensors; with these alone, decoded images can be cached."""
_AUGMENTATION_STREAM = -2
"""First part of the seeds of augmentation. It separates them from the seeds of steps, epochs and samples."""


class Planned(NamedTuple):
    """Positions of the samples of one step in the data set, int64.

    Attributes:
        batch: Samples of the whole batch.
        pieces: Samples of each piece that this process computes.
    """

    batch: torch.Tensor
    pieces: tuple[torch.Tensor, ...]


class InputSource(Protocol):
    """Source of model inputs for the samples of a data set."""

    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        """Yield the inputs of the pieces of each step, one list per step of the plan.

        Inputs depend only on samples, epoch, batch and the seed of the source.

        Args:
            plan: Samples of each step.
            epoch: Number of the epoch, from 0, for augmentation.
        """
        ...

    def reseeded(self, seed: int) -> InputSource:  # noqa: ARG002 - sources without random numbers ignore it
        """Return the same source with augmentation of another seed; the source itself if nothing is random."""
        return self


def open_source(
    dataset: Dataset, preprocess: ItemPreprocess, *, augment: tuple[str, ...], seed: int
) -> InputSource:
    """Return a source of inputs for a model.

    Args:
        dataset: The training data.
        preprocess: Preprocessing of the model.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`, for images.
        seed: Seed of the augmentation.

    Raises:
        DataError: If an item cannot be read.
        CheckpointError: If the tokenizer of the model is missing or unsuitable.
        UsageError: If an augmentation is unknown, given twice, or not applicable to the data.
    """
    check_augment(preprocess, augment)
    if isinstance(preprocess, Tokenization):
        return TextSource(tokens=tokens_of(of_kind(dataset, TextSet), preprocess))
    return ImageSource.open(of_kind(dataset, ImageSet), preprocess, augment=augment, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource(InputSource):
    """Source of tokenized texts.

    All pieces of a batch are padded to the longest text of the batch: the number of pieces must not change
    the inputs.
    """

    tokens: Tokens

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        for step in plan:
            longest = int(self.tokens.lengths[step.batch].max())
            yield [self.tokens.batch(piece, length=longest) for piece in step.pieces]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource(InputSource):
    """Source of augmented images.

    Attributes:
        dataset: The images.
        preprocessing: Preprocessing of the model.
        augment: Names from `hydractl.data.preprocess.AUGMENTATIONS`.
        seed: Seed of the augmentation.
        cached_inputs: All inputs before augmentation, shape (N, C, H, W). None above `CACHE_BYTES`, or if an
            augmentation needs the original image.
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
        """Open a source, and decode all images once if they can be cached.

        Raises:
            DataError: If an image is missing or corrupt.
        """
        cacheable = 4 * prod(preprocessing.input_size) * len(
            dataset
        ) <= CACHE_BYTES and TENSOR_AUGMENTATIONS.issuperset(augment)
        return cls(
            dataset=dataset,
            preprocessing=preprocessing,
            augment=augment,
            seed=seed,
            # Images as the evaluation of the model preprocesses them.
            cached_inputs=torch.cat(
                [batch.inputs for batch in batches(dataset, eval_transform(preprocessing), batch_size=_CHUNK)]
            )
            if cacheable
            else None,
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
        """Yield augmented inputs of the samples `indices`, in tensors of `sizes` samples."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDraws:
    """Random augmentation of each sample of a data set in one epoch.

    Row i depends on seed, epoch, i and the size of the data set.

    Attributes:
        flip: Whether the image is mirrored, shape (N,), boolean.
        down: Shift downwards in pixels, shape (N,), int64.
        right: Shift to the right in pixels, shape (N,), int64.
        black: Normalized value of black, which fills the border, shape (C, 1, 1).
    """

    flip: torch.Tensor
    down: torch.Tensor
    right: torch.Tensor
    black: torch.Tensor

    @classmethod
    def of(cls, count: int, preprocessing: Preprocess, *, seed: int, epoch: int) -> EpochDraws:
        """Draw the augmentation of `count` samples."""
        flip, move, down, right = torch.rand(
            4, count, generator=torch.Generator().manual_seed(sample_seed(_AUGMENTATION_STREAM, seed, epoch))
        )
        _, height, width = preprocessing.input_size
        mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
        return cls(
            flip=flip < 0.5,
            down=_pixels(down, height) * (move < SHIFT_PROBABILITY),
            right=_pixels(right, width) * (move < SHIFT_PROBABILITY),
            black=((0 - mean) / std)[:, None, None],
        )

    def apply(self, inputs: torch.Tensor, indices: torch.Tensor, augment: tuple[str, ...]) -> torch.Tensor:
        """Return augmented inputs.

        Args:
            inputs: Normalized images, shape (B, C, H, W). May be changed in place.
            indices: Positions of the samples in the data set, shape (B,).
            augment: Names; only `flip` and `shift` are applied, in this order.
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
    """Return images, each shifted by a different number of pixels.

    Args:
        inputs: Shape (B, C, H, W).
        down: Shift downwards in pixels, shape (B,), int64; negative values shift upwards.
        right: Shift to the right in pixels, shape (B,), int64; negative values shift to the left.
        fill: Value of the pixels at the uncovered border, shape (C, 1, 1).
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
    """Convert numbers in [0, 1) to whole pixels, at most `SHIFT_FRACTION` of the side in either direction."""
    return ((2 * uniform - 1) * SHIFT_FRACTION * side).round().long()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a batch for a single forward pass of a process.

    Attributes:
        inputs: Images (P, C, H, W), or the inputs of a text model by name, each (P, T).
        labels: Classes of the model, shape (P,), int64; or (P, Q) for several labels or words; or class
            fractions (P, L), float32, for mixed samples.
        first: First row of the piece in the batch.
        total: Number of rows of the whole batch.
        weight: Factor of the mean loss of the piece in the loss of the batch. The weights of all pieces of
            all processes sum to 1.
        members: Number of members with different samples. Inputs and labels contain the rows of member after
            member.
    """

    inputs: Inputs
    labels: torch.Tensor
    first: int
    total: int
    weight: float
    members: int = 1

    @property
    def rows(self) -> range:
        """Rows of the piece in the batch."""
        return range(self.first, self.first + len(self.labels) // self.members)


class Feed(Protocol):
    """Source of the batches of a training."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per epoch. The last batch may be smaller."""
        ...

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of `share` in steps `start` to `stop` - 1, one list per step. Steps count from 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemFeed:
    """Batches of the samples of a data set. Each epoch uses each sample once.

    Attributes:
        source: Source of inputs.
        labels: Classes of the model, shape (N,), int64; or (N, Q): 0 or 1 for each of Q labels, or the class
            of each word, negative for words without a label.
        batch_size: Samples per batch, over all processes.
        seed: Seed of the order and of mixing.
        mixing: Mixing of the samples of a batch, for images; None for no mixing.
    """

    source: InputSource
    labels: torch.Tensor
    batch_size: int
    seed: int
    mixing: Mixing | None = None

    @classmethod
    def open(
        cls,
        dataset: Dataset,
        labels: Sequence[int] | torch.Tensor,
        preprocess: ItemPreprocess,
        *,
        augment: tuple[str, ...],
        batch_size: int,
        seed: int,
    ) -> ItemFeed:
        """Open a feed without mixing. Decodes images, or tokenizes texts.

        Args:
            dataset: The training data.
            labels: See `ItemFeed`.
            preprocess: Preprocessing of the model.
            augment: See `open_source`.
            batch_size: Samples per batch, over all processes.
            seed: Seed of order and augmentation.

        Raises:
            DataError: If an item cannot be read.
            CheckpointError: If the tokenizer of the model is missing or unsuitable.
            UsageError: If an augmentation is unknown, given twice, or not applicable to the data.
        """
        return cls(
            source=open_source(dataset, preprocess, augment=augment, seed=seed),
            labels=torch.as_tensor(labels),
            batch_size=batch_size,
            seed=seed,
        )

    def reseeded(self, seed: int) -> ItemFeed:
        """Return a feed of the same samples with order and augmentation of another seed."""
        return replace(self, source=self.source.reseeded(seed), seed=seed)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per epoch. The last batch may be smaller."""
        return -(-len(self.labels) // self.batch_size)

    def steps(self, start: int, stop: int, share: Share) -> Iterator[list[Piece]]:
        """Yield the pieces of `share` in steps `start` to `stop` - 1, one list per step. Steps count from 0."""
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
        """Return the samples to load for each piece; with mixing, one tensor for all pieces and partners."""
        if self.mixing is not None:
            return (batch[rows_read(len(batch), cut)],)
        return tuple(batch[first:last] for first, last, _ in cut)

    def _mixed(
        self, mix: Mix, batch: torch.Tensor, cut: Sequence[tuple[int, int, float]], images: Inputs
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield mixed images and targets of each piece.

        Args:
            mix: Mixing parameters of the step.
            batch: Samples of the batch.
            cut: First row, end row and weight of each piece.
            images: Images of the samples that `_read` returned.
        """
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
    """Return first row, end row and weight of each piece of a batch, for the pieces of this process.

    The weight is the piece's fraction of all labels of the batch. An empty piece gets one row with weight 0,
    because every process must take part in the exchange of gradients.
    """
    cut, total = [], len(labels)
    counts = (labels >= 0).view(total, -1).sum(1)
    for first, last in share.bounds(total):
        at = min(first, total - 1)
        cut.append((at, max(last, at + 1), int(counts[first:last].sum()) / max(1, int(counts.sum()))))
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFeeds(Feed):
    """Batches of the members of a hydra, each in a different order.

    A piece contains inputs (M P, ...) and labels (M P, ...), member after member.

    Attributes:
        feeds: One feed per member, with the same data and batch size.
        preprocess: Preprocessing of the model.
    """

    feeds: tuple[ItemFeed, ...]
    preprocess: ItemPreprocess

    @classmethod
    def of(cls, first: ItemFeed, members: int, preprocess: ItemPreprocess) -> MemberFeeds:
        """Return feeds for M members. The feed of member m has the seed of `first` plus m."""
        return cls(feeds=tuple(first.reseeded(first.seed + m) for m in range(members)), preprocess=preprocess)

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
            inputs=joined_inputs([piece.inputs for piece in pieces], self.preprocess),
            labels=torch.cat([piece.labels for piece in pieces]),
            first=first.first,
            total=first.total,
            weight=first.weight,
            members=len(pieces),
        )


def joined_inputs(parts: Sequence[Inputs], preprocess: ItemPreprocess) -> Inputs:
    """Concatenate inputs or features (P, ...) on the batch axis. Texts are padded to the longest text."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if tensors or not isinstance(preprocess, Tokenization):
        return torch.cat(tensors)
    texts = [part for part in parts if not isinstance(part, torch.Tensor)]
    fillers = {"input_ids": preprocess.pad_id, WORDS: -1}

    def filled(name: str) -> torch.Tensor:
        parts_of_name = [part[name] for part in texts]
        longest = max(tensor.shape[1] for tensor in parts_of_name)
        return torch.cat(
            [F.pad(x, (0, longest - x.shape[1]), value=fillers.get(name, 0)) for x in parts_of_name]
        )

    return {name: filled(name) for name in texts[0]}
