"""Generated JPEG files with the decoding cost of photographs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


def write_photos(folder: Path, count: int, *, size: tuple[int, int], coarse: tuple[int, int]) -> None:
    """Write smooth JPEG files with some noise into a new folder.

    Args:
        folder: Folder to create.
        count: Number of files.
        size: Width and height in pixels.
        coarse: Width and height of the random image before upscaling.
    """
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(count):
        drawn = Image.fromarray(generator.integers(0, 256, (*coarse[::-1], 3), dtype=np.uint8)).resize(size)
        noise = generator.integers(-12, 13, (*size[::-1], 3))
        pixels = (np.asarray(drawn).astype(np.int64) + noise).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:05d}.jpg", quality=90)
