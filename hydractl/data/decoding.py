"""Decoding of image files. No other module passes encoded bytes to Pillow."""

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
"""Formats that Pillow may read. Pillow detects the format from the content, and some of its other readers
start programs (Ghostscript for EPS)."""
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
"""Transposition that makes an image upright, by EXIF orientation. Orientation 1 needs no transposition."""
SAMPLE_BYTES = 8
"""Number of digest bytes that identify a sample. With 64 bits, two of ten million samples collide with a
probability of 3 in a million. Doubling it doubles the size of the recorded samples."""
MOST_COMPARED_PIXELS = 1 << 16
"""Maximum number of pixels of images that are identified by their pixels. Larger images are identified by
their file bytes, because decoding is slow. Chosen by hand (256 x 256 pixels); doubling it decodes larger
images while digests are computed."""
_COMPARED_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        DataError: If the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def check_header(data: bytes, *, place: str) -> None:
    """Check the header of an encoded image without decoding pixels. Takes less than 0.1 ms.

    Args:
        data: Content of the image file.
        place: Name of the image in messages.

    Raises:
        DataError: If the data are not an image, or the header is damaged. Damaged pixels are not detected.
    """
    with _named(place):
        _open(data).verify()


def image_sample(image: Image.Image, digest: bytes) -> bytes:
    """Return the sample digest of an image, `SAMPLE_BYTES` bytes.

    Args:
        image: The image.
        digest: SHA-256 of the file, used for images with more than `MOST_COMPARED_PIXELS` pixels or of
            unusual modes.

    Returns:
        Start of the SHA-256 of size and RGBA pixels, or of `digest`.
    """
    if image.width * image.height <= MOST_COMPARED_PIXELS and image.mode in _COMPARED_MODES:
        digest = hashlib.sha256(repr(image.size).encode() + image.convert("RGBA").tobytes()).digest()
    return digest[:SAMPLE_BYTES]


def encoded_digest(data: bytes) -> bytes:
    """Return the digest of an encoded image in the format of `Dataset.item_digest`.

    The sample digest is based on the pixels, or on the file bytes if the image is damaged.
    """
    digest = hashlib.sha256(data).digest()
    try:
        return digest + image_sample(_open(data), digest)
    except (*PILLOW_ERRORS, Image.DecompressionBombError):
        return digest + digest[:SAMPLE_BYTES]


def is_image(source: Path | IO[bytes]) -> bool:
    """Return whether the content of a regular file starts like an image in one of `FORMATS`."""
    try:
        with Image.open(source, formats=FORMATS):
            return True
    except Image.DecompressionBombError:  # `decode` refuses it with the reason
        return True
    except PILLOW_ERRORS:
        return False


def decode(data: bytes, *, place: str, least: int | None = None, max_item: int = MAX_ITEM) -> Image.Image:
    """Return the first frame of an encoded image.

    Args:
        data: Content of the image file.
        place: Name of the image in messages.
        least: Minimum number of pixels per side. JPEG files may then be decoded at a smaller size, which is
            faster. None decodes all pixels.
        max_item: Maximum size of the pixels in bytes.

    Raises:
        DataError: If the image has a format not in `FORMATS`, or is truncated, corrupt or too large.
    """
    with _named(place):
        image = _open(data)
        if least is not None:
            image.draft(None, (least, least))
        # Check the size in the header before `load`: a small file may decode to gigabytes.
        channels = len(image.getbands())
        if (size := image.width * image.height * channels) > max_item:
            raise DataError(
                f"{place}: has {image.width} x {image.height} pixels with {channels} channels, more than {max_item} bytes",
                hint=f"make the image smaller, or add `::max-item={size}` to the data",
            )
        image.load()
        return image


def upright(image: Image.Image) -> Image.Image:
    """Return an image rotated and mirrored by its EXIF orientation.

    The pixels equal `PIL.ImageOps.exif_transpose`, which also rewrites the metadata and therefore fails if
    the metadata are damaged. Here, damaged metadata are ignored.
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
def _named(place: str) -> Iterator[None]:
    try:
        yield
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(
            f"{place}: has more than {limit} pixels, the limit of Pillow",
            hint="make the image smaller, or raise `PIL.Image.MAX_IMAGE_PIXELS` (half the limit) in Python",
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{place}: is not an image that can be decoded",
            hint=f"convert the image to a supported format: {', '.join(FORMATS)}",
        ) from error
    except PILLOW_ERRORS as error:
        raise DataError(
            f"{place}: is not an image that can be decoded", hint="replace the file with an undamaged copy"
        ) from error


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Range of bytes in a file.

    Attributes:
        path: The file.
        offset: Position of the first byte.
        size: Number of bytes.
    """

    path: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes of the range.

        Raises:
            DataError: If the file cannot be read or is too short.
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
