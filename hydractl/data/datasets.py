"""Data sets: images or texts with labels and class names, from files or from a program.

Every data set is an `Dataset`: its length, `labels`, `class_names`, and the digest of each item. `TextSet` holds texts;
`ImageSet` reads images from an `ImageStore`. `data/batches.py` turns data sets into batches of a model's inputs.
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
    'write one column per label as one column of lists: `{"labels": ["delay"]}` (docs/multi-label.md has a command)'
)
Text: TypeAlias = "str | tuple[str, str]"
"""One text or a pair of texts, such as a premise and a hypothesis."""


def change_text(text: Text, change: Callable[[str], str]) -> Text:
    """Return a text changed, or both of two that belong together, the first one first."""
    return change(text) if isinstance(text, str) else (change(text[0]), change(text[1]))


class Content(StrEnum):
    """What the items are; the value is how messages call them."""

    IMAGES = "images"
    TEXTS = "texts"

    @property
    def singular(self) -> str:
        """One of them."""
        return self.value.removesuffix("s")


def text_sample(text: Text) -> bytes:
    """Return the bytes that identify a text. Blanks, line ends and Unicode forms, which file formats change, do not count."""
    plain_text = change_text(text, lambda part: " ".join(unicodedata.normalize("NFC", part).split()))
    return hashlib.sha256(json.dumps(plain_text).encode()).digest()[:SAMPLE_BYTES]


UNASKED = -100
"""Label of a word that nothing is asked about, as in losses of PyTorch."""


ItemLabels: TypeAlias = "tuple[int, ...] | tuple[tuple[int, ...], ...]"


class Labels(NamedTuple):
    """What is said of the classes of items; as in `Dataset`."""

    class_names: tuple[str, ...] = ()
    labels: ItemLabels | None = None
    numbered: bool = False
    task: Task = SINGLE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset(ABC):
    """Images or texts in a fixed order, with or without labels.

    Safe to read from several threads.

    Attributes:
        content: What the items are.
        name: What reports call the set; holds no absolute path.
        class_names: One name a class, in the order that labels count; empty without labels.
        labels: For each item an index into `class_names`; of items that may have several, increasing ones; or one for each word.
            None without labels.
        numbered: Whether classes have no names: a table's labels are whole numbers, which are a model's class indices. A
            folder's sub-folder `7` has a name, and so has a class that a data set calls so.
        columns: Those of the table that the items were read from; empty where there was none.
        by_position: Whether a user insists that the classes are a model's in order, whatever their names.
        task: What the labels answer.
        is_selection: Whether items that may have several labels may have others too, which `classes=` left out.
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
        """Return how many items there are."""

    @property
    def total(self) -> int:
        """How many items there are for a user, to whom the windows of a long text are one."""
        return len(self)

    @abstractmethod
    def key(self, index: int) -> str | int:
        """Return what a user finds an item by: the path of its file, or its row number where it was read, from 0."""

    @abstractmethod
    def item_digest(self, index: int) -> bytes:
        """Return the SHA-256 of an item's content, followed by the `SAMPLE_BYTES` bytes that identify its sample.

        Equal samples of files in different formats share these last bytes. Labels and file names do not count. Every
        stage reads the digests before it computes anything.

        Raises:
            DataError: If the item cannot be read.
        """

    @abstractmethod
    def at(self, indices: Sequence[int]) -> Self:
        """Return the items at `indices`, which are in range, under labels that the caller mends."""

    @property
    def firsts(self) -> Sequence[int]:
        """Index of the first item of each sample. A long text of words is one sample with several items."""
        return range(len(self))

    @property
    def decoding(self) -> str:
        """How items are decoded where that changes what a model sees; empty where it is the usual way."""
        return ""

    def fingerprint(self, digests: Iterable[bytes] | None = None) -> str:
        """Return `sha256:...` of the selected items, their labels, the class names and `decoding`, in order.

        The same content gives the same fingerprint wherever it lies.

        Args:
            digests: `item_digest` of every item, in order; None reads them all.
        """
        item_digests = map(self.item_digest, range(len(self))) if digests is None else digests
        return fingerprint_of(len(self), self.class_names, self.labels, item_digests, decoding=self.decoding)

    def subset(self, indices: Sequence[int], *, name: str | None = None) -> Self:
        """Return the items at `indices`, all classes kept, under another name if one is given.

        Raises:
            ValueError: If an index is out of range.
        """
        if any(not 0 <= index < len(self) for index in indices):
            raise ValueError(f"an index is outside 0..{len(self) - 1}")
        return replace(self.at(indices), labels=self.labels_at(indices), name=name or self.name)

    def labels_at(self, indices: Sequence[int]) -> ItemLabels | None:
        """Return the labels of the items at `indices`."""
        return None if self.labels is None else cast("ItemLabels", tuple(self.labels[i] for i in indices))

    def of_classes(self, classes: Sequence[int]) -> Self:
        """Return the items of some classes, labels counted from 0 in the order of `classes`; all of those that may have several.

        Raises:
            DataError: If the set has no labels, or a word would be left without one.
        """
        if self.labels is None:
            raise DataError(
                f"{self.name}: has no labels, so `classes=` has nothing to select{columns_there(self.columns)}",
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
    """Texts in memory; where they were read from does not count for their digests.

    Attributes:
        texts: Each one, or two that belong together.
        keys: What `key` returns; empty where that is the position.
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
        """Return for each pair the number of its first text, if some pairs share one as passages do a query; else None."""
        numbers: dict[str, int] = {}
        pairs = [text for text in self.texts if not isinstance(text, str)]
        queries = tuple(numbers.setdefault(query, len(numbers)) for query, _ in pairs)
        return queries if len(numbers) < len(pairs) == len(self) else None


Source: TypeAlias = "Image.Image | NDArray[np.uint8] | bytes | Path | str | FileSpan"
"""An image, its pixels (height, width) or (height, width, 1, 3 or 4), or its encoded bytes: in memory, or in a file."""


@dataclass(frozen=True, slots=True)
class HeldSources:
    """Sources of some images by their numbers, or the error of a missing source. Can be sent to another process."""

    sources: Mapping[int, Source | DataError]

    def __call__(self, index: int) -> Source:
        """Return the source of one image."""
        source = self.sources[index]
        if isinstance(source, DataError):
            raise source
        return source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageStore:
    """Images by their numbers. Safe to read from several threads.

    Attributes:
        source: Returns the source of an image.
        table: Name of the table in messages, in which rows name the images; empty for images without names. None if
            images are files, which are named by their paths.
        checks_paths: Whether `source` raises if a file is missing, so that images can be checked before any is read.
        checks_headers: Whether the digest of a file checks its header.
    """

    source: Callable[[int], Source]
    table: str | None = None
    checks_paths: bool = False
    checks_headers: bool = False

    def image(self, index: int, *, least: int | None = None, max_item: int = MAX_ITEM) -> Image.Image:
        """Return one image, in the mode it is stored in; `least` and `max_item` as in `decode`.

        Raises:
            DataError: If it is missing or corrupt; the message names it.
        """
        source = self.source(index)
        if isinstance(source, Image.Image):
            return source
        if isinstance(source, np.ndarray):
            return Image.fromarray(source[..., 0] if source.shape[2:] == (1,) else source)
        where = f"{self.table}: row {index}" if self.table else str(source)
        return decode(encoded_bytes(source), where=where, least=least, max_item=max_item)

    def only(self, places: Sequence[int]) -> ImageStore:
        """Return the store of some images under the same numbers, for another process."""
        sources: dict[int, Source | DataError] = {}
        for place in places:
            try:
                sources[place] = self.source(place)
            except DataError as error:  # raised in the process that decodes the image
                sources[place] = error
        return replace(self, source=HeldSources(sources))

    def check_there(self, places: Sequence[int]) -> None:
        """Raise if a file is missing, as far as no image has to be read.

        Raises:
            DataError: If one is missing.
        """
        if self.checks_paths:
            for place in places:
                self.source(place)

    def key(self, index: int) -> str | int:
        """Return the path of an image file, or the image's number."""
        source = self.source(index) if self.table is None else index
        return str(source) if isinstance(source, str | Path) else index

    def item_digest(self, index: int) -> bytes:
        """Return the SHA-256 of one image, and the bytes that identify its pixels.

        The SHA-256 is of the encoded bytes of folders and tables, else of mode, size and pixels.

        Raises:
            DataError: If it is missing or corrupt.
        """
        if self.table or self.checks_headers:
            source = cast("bytes | Path | FileSpan", self.source(index))
            data = encoded_bytes(source)
            if self.checks_headers:
                check_header(data, where=str(source))
            return encoded_digest(data)
        image = self.image(index)
        sha = hashlib.sha256(f"{image.mode} {image.size}\n".encode())
        sha.update(image.tobytes())
        return sha.digest() + image_sample(image, sha.digest())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet(Dataset):
    """Images in a fixed order, with or without labels.

    Attributes:
        store: Where they are.
        places: Each one's number in the store.
        crew: The processes that decode them; None for threads of this one.
        lenient: Whether batches hold black for what cannot be read, and say why.
        fast: Whether batches are of images decoded at a smaller size that suffices; see `decode`.
        oriented: Whether images are turned as their EXIF orientation says.
        changed: Wraps the transform of evaluation; None for images as they are.
        max_item: Maximum size of one decoded image in bytes.
    """

    content = Content.IMAGES

    store: ImageStore
    places: Sequence[int]
    crew: WorkerPool | None = None
    lenient: bool = False
    fast: bool = False
    oriented: bool = True
    changed: Callable[[EvalTransform], PerItem] | None = None
    max_item: int = MAX_ITEM

    @override
    def __len__(self) -> int:
        return len(self.places)

    def image(self, index: int, *, least: int | None = None) -> Image.Image:
        """Decode one image, in the mode it is stored in, upright if the set is `oriented`.

        Args:
            index: 0 <= index < len(self).
            least: As in `decode`.

        Raises:
            DataError: If the image is missing or corrupt; the message names it.
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
        """Return the items at `indices` as another process can read them: without labels, and no more than it needs."""
        places = [self.places[index] for index in indices]
        return replace(
            self,
            store=self.store.only(places),
            places=places,
            crew=None,
            class_names=(),
            labels=None,
        )


def columns_there(columns: Sequence[str]) -> str:
    """Return the end of a message about labels that a table has not: the columns that it has."""
    return f"; its columns are {quoted(columns)}: select one with `::label=COLUMN`" if columns else ""


DIGEST = np.dtype("<u8")
"""Type of a sample's digest, the last `SAMPLE_BYTES` bytes of an item's digest."""


def samples_in(item_digests: Iterable[bytes]) -> np.ndarray:
    """Return the samples' digests, shape (N,) of type `DIGEST`, in the digests of N items."""
    return np.frombuffer(b"".join(digest[-SAMPLE_BYTES:] for digest in item_digests), DIGEST)


def fingerprint_of(
    count: int,
    class_names: Sequence[str],
    labels: ItemLabels | None,
    digests: Iterable[bytes],
    *,
    decoding: str,
) -> str:
    """Return the fingerprint of so many items of such labels and digests; see `Dataset`."""
    sha = hashlib.sha256(json.dumps([count, class_names, labels, *filter(None, [decoding])]).encode())
    for digest in digests:
        sha.update(digest[:-SAMPLE_BYTES])
    return f"sha256:{sha.hexdigest()}"


Reading: TypeAlias = "Preprocess | Tokenization"
"""Preprocessing of items as the model's header specifies it."""


def content_of(how: Reading) -> Content:
    """Return whether a model reads images or texts."""
    return Content.TEXTS if isinstance(how, Tokenization) else Content.IMAGES


def of_kind(items: Dataset, kind: type[T]) -> T:
    """Return a data set as one of images or texts.

    Raises:
        DataError: If it is of the other kind.
    """
    if not isinstance(items, kind):
        raise DataError(f"{items.name}: contains {items.content}, but the model reads {kind.content}")
    return items


Picture: TypeAlias = "Image.Image | Path | str | NDArray[np.uint8]"
"""An image of Pillow, the path of an image file, or uint8 pixels (height, width) or (height, width, 1, 3 or 4)."""
Item: TypeAlias = "Text | Picture"
BATCHED = 4
"""Number of axes of a batch of images."""


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


def given_items(items: Sequence[Item], how: Reading, *, name: str = "the items") -> Dataset:
    """Return items of a program as a data set. For a model that reads images, a text is a path.

    Raises:
        TypeError: If the model cannot read an item.
        DataError: If a text names no image file.
    """
    if content_of(how) is Content.TEXTS:
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
    """Return the types of items, for messages."""
    return ", ".join(sorted({type(item).__name__ for item in items}))
