"""Pictures to decode that cost what photographs do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


def write_photos(folder: Path, count: int, *, size: tuple[int, int], coarse: tuple[int, int]) -> None:
    """Write JPEG files, smooth with some noise, into a new folder.

    Args:
        folder: That.
        count: How many.
        size: Width and height, in pixels.
        coarse: Width and height of what they are smoothed from.
    """
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(count):
        drawn = Image.fromarray(generator.integers(0, 256, (*coarse[::-1], 3), dtype=np.uint8)).resize(size)
        noise = generator.integers(-12, 13, (*size[::-1], 3))
        pixels = (np.asarray(drawn).astype(np.int64) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:05d}.jpg", quality=90)
