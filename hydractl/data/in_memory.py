"""Items that a Python program holds: images of Pillow, paths, arrays, texts or pairs of them, as a set that stages read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from PIL import Image
from typing_extensions import override

from hydractl.data.datasets import Content, ImageSet, ImageStore, Items, Text, TextSet
from hydractl.data.decoding import decode, read_bytes
from hydractl.data.encode import Reading, content_of
from hydractl.errors import DataError
from hydractl.messages import did_you_mean_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    return ImageSet(store=GivenStore(tuple(map(checked_picture, items))), places=range(len(items)), name=name)


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


def image_of(picture: Picture) -> Image.Image:
    """Return the image.

    Raises:
        DataError: If a path names no image file that can be decoded.
    """
    if isinstance(picture, str | Path):
        return decode(read_bytes(Path(picture)), where=str(picture))
    if isinstance(picture, np.ndarray):
        return Image.fromarray(picture[..., 0] if picture.shape[2:] == (1,) else picture)
    return picture


def kinds(items: Iterable[object]) -> str:
    """Return the types of items, for messages."""
    return ", ".join(sorted({type(item).__name__ for item in items}))


@dataclass(frozen=True, slots=True, eq=False)
class GivenStore(ImageStore):
    """Images in memory, or at paths."""

    pictures: Sequence[Picture] | Mapping[int, Picture]

    @override
    def only(self, places: Sequence[int]) -> GivenStore:
        return GivenStore({place: self.pictures[place] for place in places})

    @override
    def image(self, index: int) -> Image.Image:
        return image_of(self.pictures[index])

    @override
    def key(self, index: int) -> str | int:
        picture = self.pictures[index]
        return str(picture) if isinstance(picture, str | Path) else index
