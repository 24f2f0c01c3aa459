"""How image files are opened: the only place that hands bytes to Pillow."""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from PIL import ExifTags, Image, UnidentifiedImageError, features

from hydractl.data.reference import MAX_ITEM
from hydractl.errors import DataError

FORMATS = (
    "PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF",
    *(["AVIF"] if "avif" in features.modules and features.check("avif") else []),
)  # fmt: skip
"""Formats that Pillow may read. Pillow detects the format from the content, and some other readers start
programs, such as Ghostscript for EPS.
"""
PILLOW_ERRORS = (
    OSError, SyntaxError, ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError, ArithmeticError, struct.error,
    zlib.error,
)  # fmt: skip
"""Exceptions that Pillow's readers raise for damaged files."""
_TRANSPOSES = MappingProxyType(
    {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
)
"""Transposition that makes an image upright, by its EXIF orientation."""
SAMPLE_BYTES = 8
"""Number of bytes that identify a sample. A collision among ten million samples occurs in less than one of a million runs."""
MOST_COMPARED_PIXELS = 1 << 16
"""Number of pixels up to which pixels identify an image. The bytes of the file identify a larger one: decoding is slow."""
_COMPARED_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})


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
        _open(data).verify()


def image_sample(image: Image.Image, digest: bytes) -> bytes:
    """Return the bytes that identify an image: of its RGBA pixels, or `digest` of a large image or one of other modes."""
    if image.width * image.height <= MOST_COMPARED_PIXELS and image.mode in _COMPARED_MODES:
        digest = hashlib.sha256(repr(image.size).encode() + image.convert("RGBA").tobytes()).digest()
    return digest[:SAMPLE_BYTES]


def encoded_digest(data: bytes) -> bytes:
    """Return the digest of an encoded image, as `Dataset.item_digest`. A damaged image is identified by its bytes."""
    digest = hashlib.sha256(data).digest()
    try:
        return digest + image_sample(_open(data), digest)
    except (*PILLOW_ERRORS, Image.DecompressionBombError):
        return digest + digest[:SAMPLE_BYTES]


def is_image(source: Path | IO[bytes]) -> bool:
    """Return whether the content of a regular file begins like an image of one of `FORMATS`."""
    try:
        with Image.open(source, formats=FORMATS):
            return True
    except Image.DecompressionBombError:  # `decode` refuses it with the reason
        return True
    except PILLOW_ERRORS:
        return False


def decode(data: bytes, *, where: str, least: int | None = None, max_item: int = MAX_ITEM) -> Image.Image:
    """Return the first frame of an encoded image.

    Args:
        data: Bytes of the image file.
        where: Name of the image in messages.
        least: Number of pixels that each side needs at least: JPEG files may then be decoded at a smaller size, which is
            faster. None decodes all pixels.
        max_item: Largest number of bytes of pixels.

    Raises:
        DataError: If it is not an image of one of `FORMATS`, or truncated, corrupt or too large.
    """
    with _named(where):
        image = _open(data)
        if least is not None:
            image.draft(None, (least, least))
        # a small file may decode to gigabytes
        channels = len(image.getbands())
        if (size := image.width * image.height * channels) > max_item:
            raise DataError(
                f"{where}: has {image.width} x {image.height} pixels with {channels} channels, more than {max_item} bytes",
                hint=f"make the image smaller, or add `::max-item={size}` to the data",
            )
        image.load()
        return image


def upright(image: Image.Image) -> Image.Image:
    """Return an image turned and mirrored as its EXIF orientation says, with the pixels of `PIL.ImageOps.exif_transpose`.

    That rewrites the metadata too, and so fails on damaged ones, which here count as none.
    """
    image.load()
    try:
        method = _TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except PILLOW_ERRORS:
        return image
    return image if method is None else image.transpose(method)


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(
            f"{where}: has more than {limit} pixels, the limit of Pillow",
            hint="make the image smaller, or raise `PIL.Image.MAX_IMAGE_PIXELS` (half the limit) in Python",
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{where}: is not an image that can be decoded",
            hint=f"convert the image to a supported format: {', '.join(FORMATS)}",
        ) from error
    except PILLOW_ERRORS as error:
        raise DataError(
            f"{where}: is not an image that can be decoded", hint="replace the file with an undamaged copy"
        ) from error


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Some bytes of a file."""

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Return them.

        Raises:
            DataError: If they are not there.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.offset)
                chunk = file.read(self.size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(chunk) < self.size:
            raise DataError(
                f"{self.path}: ends before byte {self.offset + self.size}", hint="download it again"
            )
        return chunk


def encoded_bytes(source: bytes | Path | str | FileSpan) -> bytes:
    """Return the bytes of an encoded image.

    Raises:
        DataError: If a file cannot be read.
    """
    if isinstance(source, bytes):
        return source
    return source.read() if isinstance(source, FileSpan) else read_bytes(Path(source))
