"""Corruptions of ImageNet-C and CIFAR-10-C in numpy and scipy (Hendrycks and Dietterich 2019).

Each function maps an image (H, W, C), float64 in [0, 1], C = 1 or 3, and the parameters of a severity to a
corrupted image. `corrupted` reads and returns 8 bits per channel, truncated as in the original code. All
randomness comes from the generator, in the order of the original code, so equal draws give equal pixels.
Differences from the original code:

- OpenCV's affine maps round positions to 1/32 pixel. This module does not round.
- The original motion blur calls ImageMagick. This module implements ImageMagick's kernel and rounding.
- The original frost samples five photographs. This module draws ice (`_ice`) unless photographs are given
  (`_crop`).
- Files of ImageNet-C are also compressed as JPEG with quality 85. Here a model gets the corrupted pixels
  directly.
- Grey images keep a single channel. The original code supports three channels only.

Parameters are those of `make_cifar_c.py`, `make_tinyimagenet_c.py` and `make_imagenet_c.py` of
github.com/hendrycks/robustness. Lengths are in pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from math import ceil, cos, hypot, radians, sin
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from scipy.signal import fftconvolve

from hydractl.data.decoding import decode, read_bytes, upright
from hydractl.research.corruptions.names import PHOTOGRAPHS, Corruption, Photographs

Pixels: TypeAlias = NDArray[np.float64]
Random: TypeAlias = np.random.Generator
ROUNDING = 1e-6
"""Added before a level is truncated to an integer, because machines round differently. Chosen by hand, far
below the distance 1 of two levels; doubling changes almost no pixel."""
GREY = np.array([0.299, 0.587, 0.114])
"""Luma weights of red, green and blue, as in OpenCV."""


def corrupted(image: Image.Image, corruption: Corruption, random: Random) -> Image.Image:
    """Corrupt an image of mode `L` or `RGB`; mode and size stay the same.

    The parameters are those of the benchmark with the nearest image size; see `strengths`.
    """
    strength = strengths(min(image.size))[corruption.name][corruption.severity - 1]
    if corruption.name in _ON_FILES:
        return _ON_FILES[corruption.name](image, strength)
    pixels = np.atleast_3d(np.asarray(image)) / 255.0
    pixels_after = (
        _ON_PIXELS[corruption.name](pixels, strength, random)
        if corruption.photographs is None
        else _frost(pixels, strength, random, corruption.photographs)
    )
    levels = (np.clip(pixels_after, 0, 1) * 255 + ROUNDING).astype(np.uint8)
    return Image.fromarray(levels.squeeze(2) if image.mode == "L" else levels)


def _impulse_noise(x: Pixels, share: float, random: Random) -> Pixels:
    """Set a share of the values to 0 or 1 with equal probability, as in scikit-image."""
    flipped, salted = random.random(x.shape) <= share, random.random(x.shape) <= 0.5
    return np.where(flipped, salted.astype(float), x)


def _defocus_blur(x: Pixels, disk: tuple[float, float], _: Random) -> Pixels:
    kernel = _disk(*disk)
    edge = len(kernel) // 2
    padded = np.pad(x, ((edge, edge), (edge, edge), (0, 0)), mode="reflect")
    return np.asarray(fftconvolve(padded, kernel[:, :, None], mode="valid", axes=(0, 1)))


def _glass_blur(x: Pixels, glass: tuple[float, int, int], random: Random) -> Pixels:
    """Blur, give each pixel the colour of a random neighbour, from the lower right, then blur again.

    The original code means to swap both pixels but copies one, because numpy returns views.
    """
    sigma, reach, times = glass
    height, width, channels = x.shape
    flat = np.floor(_smooth(x, sigma) * 255).reshape(-1, channels) / 255
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    targets = np.array([h * width + w for h in rows for w in columns], dtype=np.int64)
    source = list(range(height * width))
    for _ in range(times):
        moves = random.integers(-reach, reach, size=(len(targets), 2))
        for place, neighbour in zip(
            targets.tolist(), (targets + moves[:, 0] + width * moves[:, 1]).tolist(), strict=True
        ):
            source[place] = source[neighbour]
    return _smooth(flat[source].reshape(x.shape), sigma)


def _zoom_blur(x: Pixels, zoom: tuple[float, float], _: Random) -> Pixels:
    end, step = zoom
    factors = np.arange(1, end, step)
    return np.asarray((x + sum(_enlarged(x, factor) for factor in factors)) / (len(factors) + 1))


def _snow(x: Pixels, snow: tuple[float, ...], random: Random) -> Pixels:
    mean, spread, size, least, radius, sigma, image_weight = snow
    flakes = _enlarged(random.normal(size=(*x.shape[:2], 1), loc=mean, scale=spread), size)
    flakes = np.where(flakes < least, 0, flakes)
    flakes = np.floor(np.clip(flakes, 0, 1) * 255) / 255
    flakes = _moved(flakes, radius, sigma, random.uniform(-135, -45))
    pale = np.maximum(x, _grey(x) * 1.5 + 0.5)
    return image_weight * x + (1 - image_weight) * pale + flakes + np.rot90(flakes, k=2)


def _frost(
    x: Pixels, frost: tuple[float, float], random: Random, photographs: Photographs | None = None
) -> Pixels:
    image_weight, added = frost
    draw = _ice if photographs is None else partial(_crop, photographs)
    ice = draw(x.shape[0], x.shape[1], random)
    return image_weight * x + added * (ice if x.shape[2] > 1 else _grey(ice))


def _fog(x: Pixels, fog: tuple[float, float], random: Random) -> Pixels:
    amount, decay = fog
    height, width, _ = x.shape
    cloud = _plasma(1 << (max(height, width) - 1).bit_length(), decay, random)
    brightest = float(x.max())
    return (x + amount * cloud[:height, :width, None]) * (brightest / (brightest + amount))


def _brightness(x: Pixels, added: float, _: Random) -> Pixels:
    """Add to the value of HSV, which scales all channels; black becomes grey."""
    value = x.max(axis=2, keepdims=True)
    raised = np.clip(value + added, 0, 1)
    return np.asarray(np.where(value > 0, x * raised / np.where(value > 0, value, 1), raised))


def _contrast(x: Pixels, contrast: float, _: Random) -> Pixels:
    means = x.mean(axis=(0, 1), keepdims=True)
    return np.asarray((x - means) * contrast + means)


def _elastic(x: Pixels, elastic: tuple[float, float, float], random: Random) -> Pixels:
    strength, sigma, reach = elastic
    height, width, channels = x.shape
    centre, size = np.array([height, width]) // 2, min(height, width) // 3
    corners = np.array([centre + size, centre + np.array([size, -size]), centre - size], dtype=float)
    moved = corners + random.uniform(-reach, reach, size=corners.shape)
    # source position of each output pixel, as (column, row)
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners).T
    x = np.dstack([
        ndimage.affine_transform(x[..., c], back[::-1, 1::-1], back[::-1, 2], order=1, mode="mirror")
        for c in range(channels)
    ])  # fmt: skip
    stretch = [
        strength * ndimage.gaussian_filter(random.uniform(-1, 1, size=(height, width)), sigma, truncate=3)
        for _ in range(2)
    ]
    rows, columns = np.mgrid[:height, :width]
    places = np.stack([rows + stretch[1], columns + stretch[0]])
    return np.dstack([
        ndimage.map_coordinates(x[..., c], places, order=1, mode="reflect") for c in range(channels)
    ])  # fmt: skip


def _pixelate(image: Image.Image, share: float) -> Image.Image:
    width, height = image.size
    small = image.resize((max(1, int(width * share)), max(1, int(height * share))), Image.Resampling.BOX)
    return small.resize((width, height), Image.Resampling.BOX)


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return decode(file.getvalue(), place="the image as a JPEG file")


_ON_FILES: Mapping[str, Callable[[Image.Image, Any], Image.Image]] = MappingProxyType(
    {"pixelate": _pixelate, "jpeg": _jpeg}
)
_ON_PIXELS: Mapping[str, Callable[[Pixels, Any, Random], Pixels]] = MappingProxyType(
    {
        "gaussian-noise": lambda x, scale, random: x + random.normal(size=x.shape, scale=scale),
        "shot-noise": lambda x, photons, random: random.poisson(x * photons) / photons,
        "impulse-noise": _impulse_noise,
        "defocus-blur": _defocus_blur,
        "glass-blur": _glass_blur,
        "motion-blur": lambda x, motion, random: _moved(x, motion[0], motion[1], random.uniform(-45, 45)),
        "zoom-blur": _zoom_blur,
        "snow": _snow,
        "frost": _frost,
        "fog": _fog,
        "brightness": _brightness,
        "contrast": _contrast,
        "elastic": _elastic,
    }
)


def _smooth(x: Pixels, sigma: float) -> Pixels:
    """Apply scikit-image's Gaussian filter to x (H, W, C)."""
    return np.asarray(ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4.0))


def _grey(x: Pixels) -> Pixels:
    """Return the luma (H, W, 1) of x (H, W, C), as in OpenCV."""
    return x if x.shape[2] == 1 else (x @ GREY)[..., None]


def _disk(radius: float, sigma: float) -> Pixels:
    """Return a disk with sum 1 whose edge is smoothed over 3 pixels, or over 5 pixels for large radii."""
    reach = 8 if radius <= 8 else ceil(radius)
    line = np.arange(-reach, reach + 1)
    disk = ((line[:, None] ** 2 + line**2) <= radius**2).astype(float)
    disk /= disk.sum()
    side = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    bell = np.exp(-(side**2) / (2 * sigma**2))
    for axis in (0, 1):
        disk = ndimage.correlate1d(disk, bell / bell.sum(), axis=axis, mode="mirror")
    return disk


def _moved(x: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Apply ImageMagick's motion blur to x (H, W, C).

    The kernel is one half of a Gaussian, with 2 radius + 1 pixels along a line; edge pixels are repeated.
    ImageMagick rounds to 16 bits and then truncates to 8 bits.
    """
    width = 2 * ceil(radius) + 1
    bell = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    down, right = width * sin(radians(angle)), width * cos(radians(angle))
    rows, columns = np.arange(x.shape[0]), np.arange(x.shape[1])
    blurred = np.zeros_like(x)
    for i, weight in enumerate(bell / bell.sum()):
        dy = ceil(i * down / hypot(down, right) - 0.5)
        dx = ceil(i * right / hypot(down, right) - 0.5)
        blurred += (
            weight * x[np.clip(rows + dy, 0, len(rows) - 1)][:, np.clip(columns + dx, 0, len(columns) - 1)]
        )
    return np.floor(np.floor(blurred * 65535 + 0.5) / 257) / 255


def _enlarged(x: Pixels, factor: float) -> Pixels:
    """Return the centre of x (H, W, C), enlarged to the size of x."""
    height, width, _ = x.shape
    inner = [ceil(side / factor) for side in (height, width)]
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    large = ndimage.zoom(x[top : top + inner[0], left : left + inner[1]], (factor, factor, 1), order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return np.asarray(large[top : top + height, left : left + width])


def _plasma(size: int, decay: float, random: Random) -> Pixels:
    """Return fractal heights (size, size) in [0, 1], by the diamond-square algorithm on a torus.

    Each value is the mean of four neighbours plus noise. The noise is divided by `decay` from one scale to
    the next. `size` is a power of two.
    """
    heights = np.zeros((size, size))
    step, noise = size, 100.0

    def mean(total: Pixels) -> Pixels:
        return total / 4 + noise * random.uniform(-noise, noise, total.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        square = corners + np.roll(corners, -1, 0)
        square += np.roll(square, -1, 1)
        heights[half::step, half::step] = mean(square)
        centres = heights[half::step, half::step]
        heights[::step, half::step] = mean(
            centres + np.roll(centres, 1, 0) + corners + np.roll(corners, -1, 1)
        )
        heights[half::step, ::step] = mean(
            centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 0)
        )
        step, noise = half, noise / decay
    heights -= heights.min()
    return heights / max(float(heights.max()), np.finfo(float).tiny)


def _crop(photographs: Photographs, height: int, width: int, random: Random) -> Pixels:
    """Return a random crop (H, W, 3) in [0, 1] of a random photograph."""
    index = int(random.integers(len(photographs.files)))
    picture = photograph(photographs, index, frost_scale(min(height, width)))
    top, left = random.integers(0, picture.shape[0] - height), random.integers(0, picture.shape[1] - width)
    return np.asarray(picture[top : top + height, left : left + width] / 255.0)


@lru_cache(maxsize=PHOTOGRAPHS)
def photograph(photographs: Photographs, index: int, scale: float) -> NDArray[np.uint8]:
    """Return a photograph (H, W, 3) without alpha channel, scaled bilinearly as OpenCV's `resize` does.

    Raises:
        DataError: If the file cannot be read.
    """
    file = photographs.files[index]
    picture = np.asarray(upright(decode(read_bytes(file), place=str(file))).convert("RGB"))
    sides = [round(side * scale) for side in picture.shape[:2]]
    places = [
        np.clip((np.arange(new) + 0.5) / scale - 0.5, 0, old - 1)
        for new, old in zip(sides, picture.shape[:2], strict=True)
    ]
    grid = np.meshgrid(*places, indexing="ij")
    levels = [ndimage.map_coordinates(picture[..., c].astype(float), grid, order=1) for c in range(3)]
    return np.floor(np.stack(levels, -1) + 0.5).astype(np.uint8)


def _ice(height: int, width: int, random: Random) -> Pixels:
    """Draw a layer of frost (H, W, 3) in [0, 1]: branching ridges of a fractal in cold colours.

    Mean colour and standard deviation equal those of the original photographs.
    """
    size = 1 << (max(height, width) - 1).bit_length()
    ridges = sum(
        weight * (1 - 2 * np.abs(_plasma(size, decay, random) - 0.5)) ** 4
        for weight, decay in ((0.6, 1.7), (0.4, 1.3))
    )
    layer = np.asarray(ridges)[:height, :width, None]
    return np.asarray(np.clip(ICE_MEAN + ICE_SPREAD * (layer - layer.mean()) / max(layer.std(), 1e-6), 0, 1))


ICE_MEAN, ICE_SPREAD = np.array([0.57, 0.65, 0.70]), 0.11
"""Mean colour and standard deviation (within crops of 224 pixels) of the five photographs in the original
code."""


Strengths: TypeAlias = Mapping[str, tuple[Any, ...]]


def strengths(side: int) -> Strengths:
    """Return the parameters of each severity, by corruption, for images with this shorter side.

    They come from CIFAR-10-C (32 pixels), Tiny ImageNet-C (64 pixels) or ImageNet-C (224 pixels). The limits
    are the geometric means of these sizes.
    """
    return next((benchmark for end, benchmark in ((46, CIFAR), (120, TINY)) if side < end), IMAGENET)


def frost_scale(side: int) -> float:
    """Return the scale of frost photographs for images with this shorter side; see `strengths`."""
    return next((scale for end, scale in ((46, 0.2), (120, 0.3)) if side < end), 1.0)


def _elastic_strengths(size: int, *shares: tuple[float, float, float]) -> tuple[tuple[float, ...], ...]:
    """Return strength, smoothing and corner shift in pixels, given as shares of the image size."""
    return tuple(tuple(size * share for share in severity) for severity in shares)


IMAGENET: Strengths = MappingProxyType(
    {
        "gaussian-noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot-noise": (60, 25, 12, 5, 3),
        "impulse-noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus-blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass-blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion-blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom-blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        # not 224: the original code has 244
        "elastic": _elastic_strengths(
            244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg": (25, 18, 15, 10, 7),
    }
)
_SMALL: Strengths = MappingProxyType(
    {"zoom-blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))}
)
TINY: Strengths = MappingProxyType(
    {
        **_SMALL,
        "gaussian-noise": (0.04, 0.08, 0.12, 0.15, 0.18),
        "shot-noise": (250, 100, 50, 30, 15),
        "impulse-noise": (0.01, 0.02, 0.05, 0.08, 0.14),
        "defocus-blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "glass-blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "motion-blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "elastic": _elastic_strengths(
            64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)
        ),
        "pixelate": (0.9, 0.8, 0.7, 0.6, 0.5),
        "jpeg": (65, 58, 50, 40, 25),
    }
)
CIFAR: Strengths = MappingProxyType(
    {
        **_SMALL,
        "gaussian-noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot-noise": (500, 250, 100, 75, 50),
        "impulse-noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus-blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass-blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion-blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic": _elastic_strengths(
            32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg": (80, 65, 58, 50, 40),
    }
)
