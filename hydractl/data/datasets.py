"""Data sets: images or texts with labels and class names, from files or from Python objects.

A `Dataset` has a length, `labels`, `class_names` and a digest of each item. `TextSet` holds texts in memory.
`ImageSet` reads images from an `ImageStore`. `data/batches.py` creates batches from data sets.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from PIL import Image
from typing_extensions import override

from hydractl.data.decoding import (
    SAMPLE_BYTES,
    FileSpan,
    check_header,
    decode,
    encoded_bytes,
    encoded_digest,
    image_sample,
    upright,
)
from hydractl.data.reference import MAX_ITEM
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, UnreadableError
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.messages import did_you_mean_path, quoted
from hydractl.tasks import SINGLE_LABEL, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hydractl.data.preprocess import EvalTransform, PerItem

T = TypeVar("T", bound="Dataset")
LABELS_HINT = (
    "use one sub-folder per class in a folder; a column `label` in a table, or give its name with `::label=COLUMN`; "
    'write one column per label as one column of lists: `{"labels": ["delay"]}` (docs/labels.md has a command)'
)
Text: TypeAlias = "str | tuple[str, str]"
"""One text or a pair of texts, such as a premise and a hypothesis."""


def change_text(text: Text, change: Callable[[str], str]) -> Text:
    """Apply `change` to a text, or to both texts of a pair (the first one first)."""
    return change(text) if isinstance(text, str) else (change(text[0]), change(text[1]))


class Content(StrEnum):
    """Type of the items of a data set. The value is its name in messages, in the plural."""

    IMAGES = "images"
    TEXTS = "texts"

    @property
    def singular(self) -> str:
        """Name of the type in the singular."""
        return self.value.removesuffix("s")


def text_sample(text: Text) -> bytes:
    """Return the sample digest of a text, `SAMPLE_BYTES` bytes.

    White space and Unicode forms are normalized first, because file formats change them.
    """
    plain_text = change_text(text, lambda part: " ".join(unicodedata.normalize("NFC", part).split()))
    return hashlib.sha256(json.dumps(plain_text).encode()).digest()[:SAMPLE_BYTES]


NO_LABEL = -100
"""Label of words to ignore, the default `ignore_index` of losses in PyTorch."""


ItemLabels: TypeAlias = "tuple[int, ...] | tuple[tuple[int, ...], ...]"


class Labels(NamedTuple):
    """Classes and labels of items. The fields are those of `Dataset`."""

    class_names: tuple[str, ...] = ()
    labels: ItemLabels | None = None
    numbered: bool = False
    task: Task = SINGLE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset(ABC):
    """Images or texts in a fixed order, with or without labels. Safe to read from several threads.

    Attributes:
        content: Type of the items.
        name: Name of the data set in reports, without local folders.
        class_names: One name per class. Empty without labels.
        labels: One entry per item, made from indices into `class_names`: an index; for data with several
            labels a tuple of increasing indices; for token classification a tuple with one index per answered
            word. None without labels.
        numbered: Whether classes are numbers without names: labels of a table are integers, read as class
            indices of the model. Names of sub-folders and declared class names are names, even `7`.
        columns: All columns of the source table. Empty without a table.
        by_position: Whether the user matches classes to the model's by order (`classes-by=`), ignoring names.
        task: Task of the labels.
        is_selection: Whether `classes=` removed labels from items with several labels.
    """

    content: ClassVar[Content]

    name: str
    class_names: tuple[str, ...] = ()
    labels: ItemLabels | None = None
    numbered: bool = False
    columns: tuple[str, ...] = ()
    by_position: bool = False
    task: Task = SINGLE_LABEL
    is_selection: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @property
    def total(self) -> int:
        """Number of items in messages and reports, without counting the windows of a long text separately."""
        return len(self)

    @abstractmethod
    def key(self, index: int) -> str | int:
        """Return the path of an item's file, or its row number in the source, counted from 0."""

    @abstractmethod
    def item_digest(self, index: int) -> bytes:
        """Return the SHA-256 of an item's content, followed by the sample digest of `SAMPLE_BYTES` bytes.

        The sample digest is equal for equal samples in different file formats. Labels and file names have no
        influence. Every stage reads all digests before its computation.

        Raises:
            DataError: If the item cannot be read.
        """

    @abstractmethod
    def at(self, indices: Sequence[int]) -> Self:
        """Return the items at `indices`, which must be in range. The caller must replace the labels."""

    @property
    def firsts(self) -> Sequence[int]:
        """Index of the first item of each sample. Only windows of a long text share a sample."""
        return range(len(self))

    @property
    def decoding(self) -> str:
        """Non-default options for decoding images, like `fast+exif=ignore`. Empty if all are default."""
        return ""

    def fingerprint(self, digests: Iterable[bytes] | None = None) -> str:
        """Return `sha256:...` of the items, labels, class names and `decoding`, in order.

        File names and locations have no influence.

        Args:
            digests: `item_digest` of every item, in order. None computes the digests.
        """
        item_digests = map(self.item_digest, range(len(self))) if digests is None else digests
        return fingerprint_of(len(self), self.class_names, self.labels, item_digests, decoding=self.decoding)

    def subset(self, indices: Sequence[int], *, name: str | None = None) -> Self:
        """Return the items at `indices`, with all classes.

        Args:
            indices: Positions, in any order.
            name: New name. None keeps the name.

        Raises:
            ValueError: If an index is out of range.
        """
        if any(not 0 <= index < len(self) for index in indices):
            raise ValueError(f"an index is outside 0..{len(self) - 1}")
        return replace(self.at(indices), labels=self.labels_at(indices), name=name or self.name)

    def labels_at(self, indices: Sequence[int]) -> ItemLabels | None:
        """Return the labels of the items at `indices`. None without labels."""
        return None if self.labels is None else cast("ItemLabels", tuple(self.labels[i] for i in indices))

    def select_classes(self, classes: Sequence[int]) -> Self:
        """Return the items of some classes, with classes renumbered in the order of `classes`.

        Data with several labels keep all items, and lose the labels of other classes.

        Args:
            classes: Indices into `class_names`.

        Raises:
            DataError: If the data set has no labels, or has a label for each word and `classes` leaves out a
                class.
        """
        if self.labels is None:
            raise DataError(
                f"{self.name}: has no labels, so `classes=` has nothing to select{columns_message(self.columns)}",
                hint=LABELS_HINT,
            )
        position = {label: place for place, label in enumerate(classes)}
        class_names = tuple(self.class_names[label] for label in classes)
        if self.task.has_one_question:
            one_each = cast("tuple[int, ...]", self.labels)
            indices = [i for i, label in enumerate(one_each) if label in position]
            return replace(
                self.at(indices),
                class_names=class_names,
                labels=tuple(position[one_each[i]] for i in indices),
            )
        lists, is_selection = (
            cast("tuple[tuple[int, ...], ...]", self.labels),
            len(classes) < len(self.class_names),
        )
        if self.task.by_label:
            return replace(
                self,
                class_names=class_names,
                labels=tuple(tuple(sorted(position[i] for i in row if i in position)) for row in lists),
                is_selection=is_selection,
            )
        if is_selection:
            raise DataError(
                f"{self.name}: has a label for each word, so `classes=` cannot leave any out",
                hint="leave it out",
            )
        return replace(
            self, class_names=class_names, labels=tuple(tuple(position[i] for i in row) for row in lists)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextSet(Dataset):
    """Texts in memory. Their source has no influence on digests.

    Attributes:
        texts: Single texts or pairs of texts.
        keys: Results of `key`. Empty if keys are positions.
    """

    content = Content.TEXTS

    texts: tuple[Text, ...]
    keys: tuple[str | int, ...] = ()

    @override
    def __len__(self) -> int:
        return len(self.texts)

    @override
    def key(self, index: int) -> str | int:
        return self.keys[index] if self.keys else index

    @override
    def item_digest(self, index: int) -> bytes:
        return hashlib.sha256(json.dumps(self.texts[index]).encode()).digest() + text_sample(
            self.texts[index]
        )

    @override
    def at(self, indices: Sequence[int]) -> Self:
        return replace(self, texts=tuple(self.texts[i] for i in indices), keys=tuple(map(self.key, indices)))

    def queries(self) -> tuple[int, ...] | None:
        """Group pairs of texts by their first text, for example passages by query.

        Returns:
            The group of each pair, from 0. None if all first texts differ, or if any item is a single text.
        """
        numbers: dict[str, int] = {}
        pairs = [text for text in self.texts if not isinstance(text, str)]
        queries = tuple(numbers.setdefault(query, len(numbers)) for query, _ in pairs)
        return queries if len(numbers) < len(pairs) == len(self) else None


Source: TypeAlias = "Image.Image | NDArray[np.uint8] | bytes | Path | str | FileSpan"
"""Image, uint8 pixels of shape (H, W) or (H, W, 1, 3 or 4), encoded bytes, or the file of an image."""


@dataclass(frozen=True, slots=True)
class HeldSources:
    """Picklable function from image numbers to sources, for worker processes.

    Attributes:
        sources: Source of each image, or the error of a missing source.
    """

    sources: Mapping[int, Source | DataError]

    def __call__(self, index: int) -> Source:
        """Return the source of one image.

        Raises:
            DataError: If the source is missing.
        """
        source = self.sources[index]
        if isinstance(source, DataError):
            raise source
        return source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageStore:
    """Access to images by number. Safe to read from several threads.

    Attributes:
        source: Function from an image number to its source.
        table: Name of the table in messages, followed by row numbers. Empty for built-in images. None for
            image files, which messages name by path.
        checks_paths: Whether `source` raises for missing files, for an early check of all images.
        checks_headers: Whether `item_digest` also checks the headers of files.
    """

    source: Callable[[int], Source]
    table: str | None = None
    checks_paths: bool = False
    checks_headers: bool = False

    def image(self, index: int, *, least: int | None = None, max_item: int = MAX_ITEM) -> Image.Image:
        """Return an image in the stored mode. See `decode` for `least` and `max_item`.

        Raises:
            DataError: If the image is missing or corrupt. The message names the image.
        """
        source = self.source(index)
        if isinstance(source, Image.Image):
            return source
        if isinstance(source, np.ndarray):
            return Image.fromarray(source[..., 0] if source.shape[2:] == (1,) else source)
        place = f"{self.table}: row {index}" if self.table else str(source)
        return decode(encoded_bytes(source), place=place, least=least, max_item=max_item)

    def picklable_subset(self, places: Sequence[int]) -> ImageStore:
        """Return a picklable store of some images under the same numbers, for another process."""
        sources: dict[int, Source | DataError] = {}
        for place in places:
            try:
                sources[place] = self.source(place)
            # the error must be raised for this image only, in the process that decodes the image
            except DataError as error:
                sources[place] = error
        return replace(self, source=HeldSources(sources))

    def check_there(self, places: Sequence[int]) -> None:
        """Check that the files of images exist, if the store can check paths without reading images.

        Raises:
            DataError: If a file is missing.
        """
        if self.checks_paths:
            for place in places:
                self.source(place)

    def key(self, index: int) -> str | int:
        """Return the path of an image file, or the number of the image."""
        source = self.source(index) if self.table is None else index
        return str(source) if isinstance(source, str | Path) else index

    def item_digest(self, index: int) -> bytes:
        """Return the digest of one image in the format of `Dataset.item_digest`.

        For images of folders and tables the SHA-256 covers the encoded bytes, otherwise mode, size and
        pixels.

        Raises:
            DataError: If the image is missing or corrupt.
        """
        if self.table or self.checks_headers:
            source = cast("bytes | Path | FileSpan", self.source(index))
            data = encoded_bytes(source)
            if self.checks_headers:
                check_header(data, place=str(source))
            return encoded_digest(data)
        image = self.image(index)
        sha = hashlib.sha256(f"{image.mode} {image.size}\n".encode())
        sha.update(image.tobytes())
        return sha.digest() + image_sample(image, sha.digest())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet(Dataset):
    """Images in a fixed order, with or without labels.

    Attributes:
        store: Access to the images.
        places: Number of each item in the store.
        workers: Worker processes that decode images. None decodes in threads.
        lenient: Whether batches contain black images and error messages for unreadable images.
        fast: Whether batches may decode JPEG files at a smaller size; see `decode`.
        oriented: Whether images are rotated by their EXIF orientation.
        changed: Function that wraps the evaluation transform, for example with a corruption. None for
            unchanged images.
        max_item: Maximum size of one decoded image in bytes.
    """

    content = Content.IMAGES

    store: ImageStore
    places: Sequence[int]
    workers: WorkerPool | None = None
    lenient: bool = False
    fast: bool = False
    oriented: bool = True
    changed: Callable[[EvalTransform], PerItem] | None = None
    max_item: int = MAX_ITEM

    @override
    def __len__(self) -> int:
        return len(self.places)

    def image(self, index: int, *, least: int | None = None) -> Image.Image:
        """Decode an image in the stored mode, upright if the set is `oriented`.

        Args:
            index: 0 <= index < len(self).
            least: See `decode`.

        Raises:
            DataError: If the image is missing or corrupt. The message names the image.
            IndexError: If the index is out of range.
        """
        if index < 0:
            raise IndexError(index)
        image = self.store.image(self.places[index], least=least, max_item=self.max_item)
        return upright(image) if self.oriented else image

    @override
    def key(self, index: int) -> str | int:
        return self.store.key(self.places[index])

    @override
    def item_digest(self, index: int) -> bytes:
        try:
            return self.store.item_digest(self.places[index])
        except DataError as error:
            if not self.lenient:
                raise UnreadableError(error.message, hint=error.hint) from error
            # an unreadable image is identified by its error message
            digest = hashlib.sha256(error.message.encode()).digest()
            return digest + digest[:SAMPLE_BYTES]

    @property
    @override
    def decoding(self) -> str:
        return "+".join([*(["fast"] if self.fast else []), *([] if self.oriented else ["exif=ignore"])])

    @override
    def at(self, indices: Sequence[int]) -> Self:
        return replace(self, places=tuple(self.places[index] for index in indices))

    def sent(self, indices: Sequence[int]) -> ImageSet:
        """Return a small picklable set of the items at `indices` for a worker process, without labels."""
        places = [self.places[index] for index in indices]
        return replace(
            self,
            store=self.store.picklable_subset(places),
            places=places,
            workers=None,
            class_names=(),
            labels=None,
        )


def columns_message(columns: Sequence[str]) -> str:
    """Return the end of a message about missing labels, with the columns of the table.

    For example "; its columns are `text`, `n`: select one with `::label=COLUMN`". Empty without columns.
    """
    return f"; its columns are {quoted(columns)}: select one with `::label=COLUMN`" if columns else ""


DIGEST = np.dtype("<u8")
"""Data type of the sample digest: the last `SAMPLE_BYTES` bytes of the digest of an item."""


def samples_in(item_digests: Iterable[bytes]) -> np.ndarray:
    """Return the sample digests of N items, shape (N,) of type `DIGEST`, from the digests of the items."""
    return np.frombuffer(b"".join(digest[-SAMPLE_BYTES:] for digest in item_digests), DIGEST)


def fingerprint_of(
    count: int,
    class_names: Sequence[str],
    labels: ItemLabels | None,
    digests: Iterable[bytes],
    *,
    decoding: str,
) -> str:
    """Return the fingerprint of `count` items; see `Dataset.fingerprint`.

    Args:
        count: Number of items.
        class_names: Names of the classes.
        labels: Labels of the items, or None.
        digests: `Dataset.item_digest` of each item. The sample digest is ignored.
        decoding: `Dataset.decoding`. An empty string keeps the fingerprint of sets without options.
    """
    sha = hashlib.sha256(json.dumps([count, class_names, labels, *filter(None, [decoding])]).encode())
    for digest in digests:
        sha.update(digest[:-SAMPLE_BYTES])
    return f"sha256:{sha.hexdigest()}"


ItemPreprocess: TypeAlias = "Preprocess | Tokenization"
"""Preprocessing of images or tokenization of texts, from the header of a model."""


def content_of(preprocess: ItemPreprocess) -> Content:
    """Return the type of items that a model reads."""
    return Content.TEXTS if isinstance(preprocess, Tokenization) else Content.IMAGES


def of_kind(items: Dataset, kind: type[T]) -> T:
    """Return the data set after checking its class, `TextSet` or `ImageSet`.

    Raises:
        DataError: If the data set has the other type of items.
    """
    if not isinstance(items, kind):
        raise DataError(f"{items.name}: contains {items.content}, but the model reads {kind.content}")
    return items


Picture: TypeAlias = "Image.Image | Path | str | NDArray[np.uint8]"
"""A Pillow image, the path of an image file, or uint8 pixels of shape (H, W) or (H, W, 1, 3 or 4)."""
Item: TypeAlias = "Text | Picture"
BATCH_DIMENSIONS = 4
"""Number of dimensions of a batch of images."""


def listed(items: Iterable[Any]) -> list[Any]:
    """Convert items to a list.

    Raises:
        TypeError: If `items` is empty or a single item.
    """
    kinds_of_one = {str: "one text", Path: "one path", Image.Image: "one image"}
    single = next((name for kind, name in kinds_of_one.items() if isinstance(items, kind)), "")
    if isinstance(items, np.ndarray) and items.ndim != BATCH_DIMENSIONS:
        single = f"one array of shape {items.shape}"
    as_list = [] if single else list(items)
    if not as_list:
        raise TypeError(f"the model takes a list of items, found {single or 'nothing'}")
    return as_list


def is_text(item: object) -> TypeGuard[Text]:
    """Return whether an item is a text or a pair of texts."""
    is_pair = isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item)
    return is_pair or isinstance(item, str)


def given_items(items: Sequence[Item], preprocess: ItemPreprocess, *, name: str = "the items") -> Dataset:
    """Return a data set of Python objects. For a model of images, a string is a path.

    Args:
        items: Texts or images.
        preprocess: Preprocessing or tokenization of the model.
        name: Name of the data set in messages.

    Raises:
        TypeError: If an item has a type that the model cannot read.
        DataError: If an image file does not exist.
    """
    if content_of(preprocess) is Content.TEXTS:
        texts = tuple(item for item in items if is_text(item))
        if len(texts) < len(items):
            raise TypeError(f"the model reads texts, found {kinds(items)}")
        return TextSet(texts=texts, name=name)
    pictures = tuple(map(_checked_picture, items))
    return ImageSet(store=ImageStore(source=pictures.__getitem__), places=range(len(items)), name=name)


def _checked_picture(item: object) -> Picture:
    if isinstance(item, str) and not os.path.isfile(item):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
        raise DataError(
            f"{item}: no such file",
            hint=did_you_mean_path(item) or "the model reads images: a `str` is the path of an image file",
        )
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim not in {2, 3} or (*item.shape[2:], 1)[0] not in {1, 3, 4}:
            raise TypeError(
                f"arrays must be uint8 of shape (height, width, 1, 3 or 4), found {item.dtype} {item.shape}"
            )
    elif is_text(item) and not isinstance(item, str):
        raise TypeError(f"the model reads images, found {kinds([item])}")
    elif not isinstance(item, Image.Image | Path | str):
        raise TypeError(
            f"an image must be a path, a uint8 array (height, width, channels) or a Pillow image, found {kinds([item])}"
        )
    return item


def kinds(items: Iterable[object]) -> str:
    """Return the sorted type names of items for messages, like `int, str`."""
    return ", ".join(sorted({type(item).__name__ for item in items}))
