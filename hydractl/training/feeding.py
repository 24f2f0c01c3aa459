"""Batches for training: drawn globally from (seed, epoch), augmented or mixed, and cut into the share of each process.

Changes that need no image library are computed on tensors, a batch at a time, and equal those of `data.preprocess`. Mixing is mixup
(Zhang et al. 2018) and CutMix (Yun et al. 2019), as in timm's `Mixup`: each batch is mixed with its own reverse, row i with row
B - 1 - i.

Axes: N samples, B batch, P rows of a piece (of a member's, if members of a hydra see samples in different orders), R rows that are
read, M members, C channels, H height, W width, L classes, T tokens.
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
from hydractl.data.datasets import Dataset, ImageSet, Reading, TextSet, of_kind
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
SWITCH_PROBABILITY = 0.5
"""Probability of CutMix if both are enabled."""
_MIXING_STREAM = -3
"""Offset that separates these seeds from those of steps, augmentation, epochs and samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What befalls one batch.

    Attributes:
        weight: What a row's own label counts; its partner's counts the rest.
        classes: How many there are.
        box: Rows and columns of pixels that are the partner's; None where the images are blended.
    """

    weight: float
    classes: int
    box: tuple[slice, slice] | None = None

    def images(self, images: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return mixed images (P, C, H, W)."""
        if self.box is None:
            return images * self.weight + partners * (1 - self.weight)
        mixed = images.clone()
        mixed[..., *self.box] = partners[..., *self.box]
        return mixed

    def targets(self, labels: torch.Tensor, partners: torch.Tensor) -> torch.Tensor:
        """Return the share of each class (P, L), float32, of labels (P,), or (P, Q, 2) of (P, Q); a row sums to 1."""
        first, second = (F.one_hot(labels, self.classes).float() for labels in (labels, partners))
        return first * self.weight + second * (1 - self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How batches are mixed.

    Attributes:
        mixup: Both parameters of the Beta distribution that weights are drawn of; None for no blending.
        cutmix: Those of 1 less a box's share of the image; None for no boxes. One of the two is given.
        size: Height and width of images.
        classes: How many there are.
    """

    mixup: float | None
    cutmix: float | None
    size: tuple[int, int]
    classes: int

    @classmethod
    def of(cls, recipe: Recipe, how: Reading, *, classes: int) -> Mixing | None:
        """Return how the recipe mixes what a model reads so, None if it mixes nothing.

        Raises:
            UsageError: If it would mix texts.
        """
        requested = {name: value for name in ("mixup", "cutmix") if (value := getattr(recipe, name))}
        if not requested:
            return None
        if isinstance(how, Tokenization):
            name, value = next(iter(requested.items()))
            none = " ".join(f"--{name} 0" for name in requested)
            raise UsageError(
                f"`--{name} {value:g}` is for images, but the model reads texts: tokens cannot be mixed",
                hint=f"leave it out, or add `{none}`; for texts use `--label-smoothing` and `--dropout`",
            )
        _, height, width = how.input_size
        return cls(mixup=recipe.mixup, cutmix=recipe.cutmix, size=(height, width), classes=classes)

    def at(self, step: int, *, seed: int) -> Mix:
        """Return what befalls the batch of a step, counted from 0; it hangs on the two numbers alone."""
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
    """Return which rows (R,) of a batch of `total`, rising, pieces need that go from one row to another: theirs and partners."""
    rows = torch.cat([torch.arange(first, last) for first, last, _ in cut])
    return cast("torch.Tensor", torch.cat([rows, total - 1 - rows]).unique())


def _span(draws: np.random.Generator, side: int, length: int) -> slice:
    """Return what an image's side of so many pixels leaves of a length around a pixel of it."""
    centre = int(draws.integers(side))
    return slice(max(centre - length // 2, 0), min(centre + (length + 1) // 2, side))


_CHUNK = 256
TENSOR_AUGMENTATIONS = frozenset({"flip", "shift"})
_AUGMENTATION_STREAM = -2
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

    def reseeded(self, seed: int) -> InputSource:  # noqa: ARG002 - sources without random numbers ignore it
        """Return the same items with the augmentation of another seed; itself where nothing is random."""
        return self


def open_source(dataset: Dataset, how: Reading, *, augment: tuple[str, ...], seed: int) -> InputSource:
    """Return a source of inputs for a model that reads items so.

    Args:
        dataset: The training data.
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
        return TextSource(tokens=tokens_of(of_kind(dataset, TextSet), how))
    return ImageSource.open(of_kind(dataset, ImageSet), how, augment=augment, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource(InputSource):
    """Tokenised texts. All pieces of a batch are as long as its longest text, so that cutting a batch changes nothing."""

    tokens: Tokens

    @override
    def steps(self, plan: Sequence[Planned], *, epoch: int) -> Iterator[list[Inputs]]:
        for step in plan:
            longest = int(self.tokens.lengths[step.batch].max())
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
        cacheable = 4 * prod(preprocessing.input_size) * len(
            dataset
        ) <= CACHE_BYTES and TENSOR_AUGMENTATIONS.issuperset(augment)
        return cls(
            dataset=dataset,
            preprocessing=preprocessing,
            augment=augment,
            seed=seed,
            # all images as the model's evaluation reads them
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
        dataset: Dataset,
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
            source=open_source(dataset, how, augment=augment, seed=seed),
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
