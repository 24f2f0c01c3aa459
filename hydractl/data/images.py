"""What every image data set offers, and how an image file is decoded."""

from __future__ import annotations

import hashlib
import io
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from hydractl.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


class ImageSet(ABC):
    """Images in a fixed order, with or without labels.

    Safe to read from several threads.

    Attributes:
        name: What reports call the set; holds no absolute path.
        class_names: One name a class, in the order that labels count; empty without labels.
        labels: For each image an index into `class_names`, or None.
    """

    __slots__ = ()

    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None

    @abstractmethod
    def __len__(self) -> int:
        """Return how many images there are."""

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """Decode one image, in the mode it is stored in.

        Args:
            index: 0 <= index < len(self).

        Raises:
            DataError: If the image is missing or corrupt; the message names it.
        """

    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of one item's content: here its mode, size and pixels."""
        image = self.image(index)
        sha = hashlib.sha256(f"{image.mode} {image.size}\n".encode())
        sha.update(image.tobytes())
        return sha.digest()

    def fingerprint(self) -> str:
        """Return `sha256:...` of the selected items, their labels and the class names, in order.

        Reads every item. The same content gives the same fingerprint wherever it lies.
        """
        sha = hashlib.sha256(json.dumps([len(self), self.class_names, self.labels]).encode())
        for index in range(len(self)):
            sha.update(self.item_digest(index))
        return f"sha256:{sha.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Subset(ImageSet):
    """Some items of another set, in the order given, labels counted over some of its classes.

    Attributes:
        base: The set that holds the images.
        indices: Which of its items, each in 0..len(base)-1.
        class_names: The classes that labels count over; every selected item's class is one of them.
        labels: As in every set.
        name: As in every set.
    """

    base: ImageSet
    indices: tuple[int, ...]
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    name: str

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> Image.Image:
        """Decode one image of the base."""
        return self.base.image(self.indices[index])

    def item_digest(self, index: int) -> bytes:
        """Return the base's digest."""
        return self.base.item_digest(self.indices[index])

    @classmethod
    def of(cls, base: ImageSet, indices: tuple[int, ...]) -> Subset:
        """Return the items at `indices`, all classes kept.

        Raises:
            ValueError: If an index is out of range.
        """
        if any(not 0 <= index < len(base) for index in indices):
            raise ValueError(f"an index is outside 0..{len(base) - 1}")
        labels = None if base.labels is None else tuple(base.labels[index] for index in indices)
        return cls(base=base, indices=indices, class_names=base.class_names, labels=labels, name=base.name)

    @classmethod
    def of_classes(cls, base: ImageSet, classes: tuple[int, ...]) -> Subset:
        """Return the items of some classes, labels counted from 0 in the order of `classes`.

        Raises:
            DataError: If the set has no labels.
        """
        if base.labels is None:
            raise DataError(f"{base.name}: has no labels, so `classes=` cannot choose among them")
        position = {label: place for place, label in enumerate(classes)}
        kept = tuple((i, position[label]) for i, label in enumerate(base.labels) if label in position)
        return cls(
            base=base,
            indices=tuple(i for i, _ in kept),
            class_names=tuple(base.class_names[label] for label in classes),
            labels=tuple(label for _, label in kept),
            name=base.name,
        )


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def decode(data: bytes, *, where: str) -> Image.Image:
    """Return the first frame of an encoded image, decoded in full.

    Args:
        data: The image file's bytes.
        where: What an error message calls the image.

    Raises:
        DataError: If it is no image, or a truncated or corrupt one.
    """
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    # Pillow's readers let parsing slips of broken files escape as SyntaxError and ValueError
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{where}: is not an image that can be decoded", hint="replace or remove the file"
        ) from error
    return image
