"""Sets of images, and how an image file is decoded."""

from __future__ import annotations

import contextlib
import hashlib
import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from PIL import Image
from typing_extensions import override

from hydractl.data.items import Content, Items
from hydractl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ImageStore(ABC):
    """Where images are kept or drawn. Safe to read from several threads."""

    __slots__ = ()

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """Return one image, in the mode it is stored in.

        Raises:
            DataError: If it is missing or corrupt; the message names it.
        """

    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of one image: here of its mode, size and pixels.

        Raises:
            DataError: If it is missing or corrupt.
        """
        image = self.image(index)
        sha = hashlib.sha256(f"{image.mode} {image.size}\n".encode())
        sha.update(image.tobytes())
        return sha.digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageSet(Items):
    """Images in a fixed order, with or without labels.

    Attributes:
        store: Where they are.
        places: Each one's number in the store.
    """

    content = Content.IMAGES

    store: ImageStore
    places: Sequence[int]

    @override
    def __len__(self) -> int:
        return len(self.places)

    def image(self, index: int) -> Image.Image:
        """Decode one image, in the mode it is stored in.

        Args:
            index: 0 <= index < len(self).

        Raises:
            DataError: If the image is missing or corrupt; the message names it.
            IndexError: If the index is out of range.
        """
        if index < 0:
            raise IndexError(index)
        return self.store.image(self.places[index])

    @override
    def item_digest(self, index: int) -> bytes:
        return self.store.item_digest(self.places[index])

    @override
    def at(self, indices: Sequence[int]) -> Self:
        return replace(self, places=tuple(self.places[index] for index in indices))


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
