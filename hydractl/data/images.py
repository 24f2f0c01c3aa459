"""What every image data set offers, and how an image file is decoded."""

from __future__ import annotations

import contextlib
import hashlib
import io
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from hydractl.data.items import Content, Items
from hydractl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class ImageSet(Items):
    """Images in a fixed order, with or without labels."""

    __slots__ = ()

    content = Content.IMAGES

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

    def selected(
        self,
        indices: tuple[int, ...],
        *,
        class_names: tuple[str, ...],
        labels: tuple[int, ...] | None,
        name: str,
    ) -> Subset:
        """See `Items.selected`; nothing is decoded."""
        return Subset(
            base=self,
            indices=indices,
            class_names=class_names,
            labels=labels,
            name=name,
            numbered=self.numbered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset(ImageSet):
    """Some items of another set, in the order given, labels counted over some of its classes.

    Attributes:
        base: The set that holds the images.
        indices: Which of its items, each in 0..len(base)-1.
        class_names: The classes that labels count over; every selected item's class is one of them.
        labels: As in every set.
        name: As in every set.
        numbered: As in every set.
    """

    base: ImageSet
    indices: tuple[int, ...]
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    name: str
    numbered: bool = False

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> Image.Image:
        """Decode one image of the base."""
        return self.base.image(self.indices[index])

    def item_digest(self, index: int) -> bytes:
        """Return the base's digest."""
        return self.base.item_digest(self.indices[index])


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def check_header(data: bytes, *, where: str) -> None:
    """Look at an encoded image without decoding it; takes less than 0.1 ms.

    Args:
        data: The image file's bytes.
        where: What an error message calls the image.

    Raises:
        DataError: If it is no image, or its header is damaged. Its pixels may still be.
    """
    with _named(where):
        Image.open(io.BytesIO(data)).verify()


def decode(data: bytes, *, where: str) -> Image.Image:
    """Return the first frame of an encoded image, decoded in full.

    Args:
        data: The image file's bytes.
        where: What an error message calls the image.

    Raises:
        DataError: If it is no image, or a truncated or corrupt one.
    """
    with _named(where):
        image = Image.open(io.BytesIO(data))
        image.load()
        return image


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    # Pillow's readers let parsing slips of broken files escape as SyntaxError and ValueError
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{where}: is not an image that can be decoded", hint="replace or remove the file"
        ) from error
