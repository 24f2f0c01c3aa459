"""From a DATA reference or the items of a program to a model's inputs: the one place that tells models of images from models of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import CACHE_BYTES, EVERY_BATCH, Batch, BatchShare, checked_order, tensor_cache
from hydractl.data.datasets import Content, ImageSet, ImageStore, Items, Text, TextSet
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.data.reference import DataRef
from hydractl.data.tokenize import TokenBatches, require_tokenizer
from hydractl.data.words import by_word, check_answerable, tokens_of
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.messages import counted, did_you_mean_path
from hydractl.model_inputs import Inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T", bound=Items)
Reading: TypeAlias = "Preprocess | Tokenization"
"""Preprocessing of items as the model's header specifies it."""


def content_of(how: Reading) -> Content:
    """Return what a model reads."""
    return Content.TEXTS if isinstance(how, Tokenization) else Content.IMAGES


def check_reads(how: Reading, *, model: str) -> None:
    """Refuse a model that can read no data, before any are opened.

    Args:
        how: Of the model.
        model: What messages call it.

    Raises:
        CheckpointError: If it reads texts and has no tokenizer.
    """
    if isinstance(how, Tokenization):
        require_tokenizer(how, model=model)


def open_items(
    ref: DataRef | str,
    how: Reading,
    *,
    labelled: bool = True,
    workers: int | None = 0,
    skip_bad: bool = False,
) -> Items:
    """Return the data that a reference selects, images or texts as the model reads them; as `open_data`.

    Args:
        ref: As there.
        how: Of the model.
        labelled: As there.
        workers: How many processes decode images; None for what pays, see `WorkerPool.of`.
        skip_bad: Whether images that cannot be read are left out; `progress` hears how many, see `open_readable`.
    """
    if skip_bad:
        items, left_out = open_readable(ref, how, labelled=labelled, workers=workers)
        if left_out:
            progress.warn(left_out)
        return items
    items = crewed(
        open_data(
            ref,
            content=content_of(how),
            labelled=labelled,
            pairs=how.pairs if isinstance(how, Tokenization) else None,
        ),
        workers,
    )
    if not (isinstance(how, Tokenization) and how.by_word):
        return items
    return check_answerable(by_word(items, how))


def open_readable(
    ref: DataRef | str, how: Reading, *, labelled: bool = True, workers: int | None = 0
) -> tuple[Items, str | None]:
    """Return the images that a reference selects and the model can read, and a sentence on how many are left out, if any.

    Each image is decoded once; arguments as of `open_items`.

    Raises:
        UsageError: If they are texts.
        DataError: If none can be read.
    """
    items = open_lenient(ref, how, labelled=labelled, workers=workers)
    unreadable: dict[int, str] = {}
    for batch in encoded(items, how, batch_size=64, limit_bytes=0):
        unreadable.update(batch.bad)
    items = replace(items, lenient=False)
    if not unreadable:
        return items, None
    first = f"the first is {unreadable[min(unreadable)]}"
    if len(unreadable) == len(items):
        raise DataError(f"{items.name}: all images are unreadable; {first}")
    readable = items.subset([i for i in range(len(items)) if i not in unreadable])
    left_out = f"skipped {len(unreadable)} of {counted(len(items), 'image')}, which are unreadable"
    return readable, f"{items.name}: {left_out}; {first}"


def open_lenient(
    ref: DataRef | str, how: Reading, *, labelled: bool = True, workers: int | None = 0
) -> ImageSet:
    """Return images that may be unreadable or missing; arguments as of `open_items`.

    Raises:
        UsageError: If they are texts.
    """
    items = open_data(ref, content=content_of(how), labelled=labelled, skip_bad=True)
    if not isinstance(items, ImageSet):
        raise UsageError("`--skip-bad` is for images, but the model reads texts", hint="leave it out")
    return replace(crewed(items, workers), lenient=True)


def lenient(items: Items) -> Items:
    """Return images that may be unreadable, or the texts."""
    return replace(items, lenient=True) if isinstance(items, ImageSet) else items


def crewed(items: T, workers: int | None) -> T:
    """Return items of which images are decoded by so many processes; None for what pays."""
    return (
        replace(items, crew=WorkerPool.of(workers, images=len(items)))
        if isinstance(items, ImageSet)
        else items
    )


def limited(how: Reading, max_length: int | None, *, model: str) -> Reading:
    """Return how a model reads texts of `max_length` tokens at most; None leaves it as it is.

    Raises:
        UsageError: If the model reads images, or not so many tokens.
    """
    if max_length is None:
        return how
    if not isinstance(how, Tokenization):
        raise UsageError(f"`--max-length` is for texts, but {model} reads images", hint="leave it out")
    if how.padding == "max_length" and max_length != how.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads only texts of {counted(how.max_length, 'token')}"
        )
    if not 1 <= max_length <= how.max_length:
        raise UsageError(
            f"`--max-length {max_length}`: {model} reads at least 1 and at most {counted(how.max_length, 'token')}",
            hint=f"add `--max-length {how.max_length}`, or leave it out",
        )
    return how.model_copy(update={"max_length": max_length})


def shortened(how: Reading, max_length: int | None) -> Reading:
    """Return how a model reads, texts of no more than `max_length` tokens; one that reads fewer or all alike stays as it is."""
    if max_length is None or not isinstance(how, Tokenization) or how.padding == "max_length":
        return how
    return how.model_copy(update={"max_length": min(how.max_length, max_length)})


def encoded(
    items: Items,
    how: Reading,
    *,
    batch_size: int,
    indices: Sequence[int] | Tensor | None = None,
    limit_bytes: int = CACHE_BYTES,
    deal: BatchShare = EVERY_BATCH,
) -> Iterable[Batch[Inputs]]:
    """Return evaluation batches that can be gone over again and again, in an order that is the same each time.

    Images come in the order of `indices`, held in memory if they fit. Texts are held as tokens, and come sorted by length so
    that little is padded, unless `deal` says otherwise: `Batch.indices` says which items a batch holds.

    Args:
        items: The data.
        how: Of the model.
        batch_size: At least 1.
        indices: Positions in the data, any order, repeats allowed; None for all of them once.
        limit_bytes: How much memory decoded images may take.
        deal: Which of the batches; no other images are decoded, and what a batch holds hangs not on it.

    Raises:
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or unfit.
        ValueError: If `batch_size` or an index is out of range.
    """
    if isinstance(how, Tokenization):
        texts = of_kind(items, TextSet)
        order = checked_order(len(texts), batch_size, indices)
        among = None if deal.among is None else deal.among * batch_size
        token_batches = TokenBatches.of(
            tokens_of(texts, how),
            indices=order,
            batch_size=batch_size,
            among=1 if deal.as_given else among,
        )
        return replace(token_batches, order=token_batches.order[deal.positions(len(order), batch_size)])
    images = of_kind(items, ImageSet)
    order = checked_order(len(images), batch_size, indices)
    return tensor_cache(
        images,
        eval_transform(how) if images.changed is None else images.changed(eval_transform(how)),
        batch_size=batch_size,
        indices=[order[i] for i in deal.positions(len(order), batch_size)],
        limit_bytes=limit_bytes,
        ahead=deal.ahead,
    )


def check_augment(how: Reading, augment: tuple[str, ...]) -> None:
    """Refuse augmentations that are not known, or not for what the model reads.

    Raises:
        UsageError: If there is one.
    """
    if not isinstance(how, Tokenization):
        train_transform(how, augment)
    elif augment:
        raise UsageError(
            f"`--augment {','.join(augment)}` is for images, but the model reads texts",
            hint="leave it out, or add `--augment none`",
        )


def of_kind(items: Items, kind: type[T]) -> T:
    """Return images or texts as such.

    Raises:
        DataError: If they are something else.
    """
    if not isinstance(items, kind):
        raise DataError(f"{items.name}: contains {items.content}, but the model reads {kind.content}")
    return items


Picture: TypeAlias = "Image.Image | Path | str | NDArray[np.uint8]"
"""An image of Pillow, the path of an image file, or uint8 pixels (height, width) or (height, width, 1, 3 or 4)."""
Item: TypeAlias = "Text | Picture"

GREY, COLOURED = 2, 3
BATCHED = 4


def listed(items: Iterable[Any]) -> list[Any]:
    """Return items as a list.

    Raises:
        TypeError: If there are none, or `items` is a single one.
    """
    kinds_of_one = {str: "one text", Path: "one path", Image.Image: "one image"}
    single = next((name for kind, name in kinds_of_one.items() if isinstance(items, kind)), "")
    if isinstance(items, np.ndarray) and items.ndim != BATCHED:
        single = f"one array of shape {items.shape}"
    as_list = [] if single else list(items)
    if not as_list:
        raise TypeError(f"the model takes a list of items, found {single or 'nothing'}")
    return as_list


def is_text(item: object) -> TypeGuard[Text]:
    """Return whether an item is a text or a pair of texts."""
    is_pair = isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)
    return is_pair or isinstance(item, str)


def given_items(items: Sequence[Item], how: Reading, *, name: str = "the items") -> Items:
    """Return items as a set that a model reads so; of a model that reads images a text is a path.

    Raises:
        TypeError: If an item is nothing that the model reads.
        DataError: If a text names no image file.
    """
    if content_of(how) is Content.TEXTS:
        texts = tuple(item for item in items if is_text(item))
        if len(texts) < len(items):
            raise TypeError(f"the model reads texts, found {kinds(items)}")
        return TextSet(texts=texts, name=name)
    return ImageSet(
        store=ImageStore(source=tuple(map(checked_picture, items)).__getitem__),
        places=range(len(items)),
        name=name,
    )


def checked_picture(item: object) -> Picture:
    """Return what an image can be made of, before any is read.

    Raises:
        TypeError: If it is nothing of the kind.
        DataError: If it is a text that names no file.
    """
    if isinstance(item, str) and not os.path.isfile(item):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
        raise DataError(
            f"{item}: no such file",
            hint=did_you_mean_path(item) or "the model reads images: a `str` is the path of an image file",
        )
    if isinstance(item, np.ndarray):
        channels = item.shape[2] if item.ndim == COLOURED else 1
        if item.dtype != np.uint8 or item.ndim not in {GREY, COLOURED} or channels not in {1, 3, 4}:
            raise TypeError(
                f"arrays must be uint8 of shape (height, width, 1, 3 or 4), found {item.dtype} {item.shape}"
            )
    elif not isinstance(item, Image.Image | Path | str):
        if is_text(item):
            raise TypeError(f"the model reads images, found {kinds([item])}")
        raise TypeError(
            f"an image must be a path, a uint8 array (height, width, channels) or a Pillow image, found {kinds([item])}"
        )
    return item


def kinds(items: Iterable[object]) -> str:
    """Return the types of items, for messages."""
    return ", ".join(sorted({type(item).__name__ for item in items}))
