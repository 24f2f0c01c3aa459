"""Data that needs no download: scikit-learn's digits and two photographs, and noise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from typing_extensions import override

from hydractl.data.datasets import ImageSet, ImageStore
from hydractl.data.reference import DataRef
from hydractl.errors import DataError, UsageError

DEFAULT_SIZE = 8
DEFAULT_LIMIT = 400
SPLITS = ("train", "val", "test")
DIGIT_NAMES = tuple("0123456789")
PHOTOS = ("china.jpg", "flower.jpg")


@dataclass(frozen=True, slots=True, eq=False)
class PixelStore(ImageStore):
    """Images held as one array, shape (N, H, W) of mode `L` or (N, H, W, 3) of mode `RGB`, uint8."""

    pixels: NDArray[np.uint8]

    @override
    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])


@dataclass(frozen=True, slots=True)
class NoiseStore(ImageStore):
    """Grey images of independent uniform pixels; image i depends on the seed, the side in pixels and i alone."""

    size: int
    seed: int

    @override
    def image(self, index: int) -> Image.Image:
        """Draw one image, mode `L`, values uniform in 0..255."""
        # numpy promises that raw words stay the same over its versions, but not what `Generator` makes of them
        words = np.random.PCG64([self.seed, index]).random_raw(-(-(self.size**2) // 8))
        values = np.asarray(words, dtype="<u8").view(np.uint8)[: self.size**2]
        return Image.fromarray(values.reshape(self.size, self.size))


def open_digits(ref: DataRef) -> ImageSet:
    """Return scikit-learn's 1,797 digits, 8 x 8 pixels, mode `L`, or one of their splits.

    Raises:
        DataError: If the split is not one of train, val and test.
    """
    pixels, labels = _digits()
    if ref.split is None:
        chosen: Sequence[int] = range(len(labels))
    elif ref.split in SPLITS:
        chosen = stratified_split(labels)[SPLITS.index(ref.split)]
    else:
        raise DataError(
            f"`digits` has no split `{ref.split}`", hint=f"choose one of {', '.join(SPLITS)}, or none for all"
        )
    return ImageSet(
        store=PixelStore(pixels),
        places=chosen,
        name="digits",
        class_names=DIGIT_NAMES,
        labels=tuple(labels[index] for index in chosen),
    )


def stratified_split(labels: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Split items 60/20/20 within every class.

    The order within a class comes from hashes of the positions, so it hangs on no library's generator.

    Returns:
        Positions for train, val and test, each increasing; together every position once.
    """
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for label in sorted(set(labels)):
        members = [index for index, item_label in enumerate(labels) if item_label == label]
        members.sort(key=lambda index: hashlib.sha256(str(index).encode()).digest())
        first, second = len(members) * 3 // 5, len(members) * 4 // 5
        for part, chunk in zip(
            parts, (members[:first], members[first:second], members[second:]), strict=True
        ):
            part.extend(chunk)
    train, val, test = (tuple(sorted(part)) for part in parts)
    return train, val, test


def open_photos(ref: DataRef) -> ImageSet:
    """Return square patches of scikit-learn's two photographs, taken from each in turn, mode `RGB`.

    The patches lie on a regular grid without overlap, and the chosen ones are spread evenly over it.

    Raises:
        UsageError: If the patches would be larger than the photographs.
    """
    size = ref.size or DEFAULT_SIZE
    grids = [_grid(photo, size) for photo in _photos()]
    if any(len(grid) == 0 for grid in grids):
        height, width = _photos()[0].shape[:2]
        raise UsageError(f"`photos` are {width} x {height} pixels, too small for patches of size={size}")
    count = min(ref.limit or DEFAULT_LIMIT, 2 * min(len(grid) for grid in grids))
    patches = np.empty((count, size, size, 3), dtype=np.uint8)
    for turn, grid in enumerate(grids):
        patches[turn::2] = grid[spread(len(grid), len(range(turn, count, 2)))]
    return ImageSet(store=PixelStore(patches), places=range(count), name="photos")


def open_noise(ref: DataRef) -> ImageSet:
    """Return uniform noise, mode `L`."""
    store = NoiseStore(size=ref.size or DEFAULT_SIZE, seed=ref.seed or 0)
    return ImageSet(store=store, places=range(ref.limit or DEFAULT_LIMIT), name="noise")


def spread(total: int, count: int) -> list[int]:
    """Return `count` positions spread evenly over 0..total-1, increasing; all of them if `count` is larger."""
    count = min(count, total)
    return [(2 * place + 1) * total // (2 * count) for place in range(count)]


@lru_cache(maxsize=1)
def _digits() -> tuple[NDArray[np.uint8], tuple[int, ...]]:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - two seconds that other data need not pay

    try:
        raw = load_digits()
    except OSError as error:
        raise DataError(
            "the installed scikit-learn lacks the digits data set", hint="reinstall scikit-learn"
        ) from error
    return np.rint(raw.images * 255 / 16).astype(np.uint8), tuple(int(label) for label in raw.target)


@lru_cache(maxsize=1)
def _photos() -> tuple[NDArray[np.uint8], ...]:
    from sklearn.datasets import load_sample_image  # noqa: PLC0415 - as above

    try:
        return tuple(np.asarray(load_sample_image(name), dtype=np.uint8) for name in PHOTOS)
    except OSError as error:
        raise DataError(
            "the installed scikit-learn lacks its sample photographs", hint="reinstall scikit-learn"
        ) from error


def _grid(photo: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Cut an (H, W, 3) photograph into (N, size, size, 3) patches, row by row."""
    rows, columns = photo.shape[0] // size, photo.shape[1] // size
    cut = photo[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return cut.swapaxes(1, 2).reshape(-1, size, size, 3)
