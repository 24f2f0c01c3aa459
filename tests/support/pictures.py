"""Folders of images, including unreadable files."""

from __future__ import annotations

import numpy as np
from PIL import Image

from hydractl.data.open_dataset import open_data


def digits_folder(root, reference):
    """Write digits as PNG files in a folder per class. Return the root folder."""
    items = open_data(reference)
    for i, label in enumerate(items.labels):
        folder = root / items.class_names[label]
        folder.mkdir(parents=True, exist_ok=True)
        items.image(i).save(folder / f"{i:03}.png")
    return root


def unreadable(folder):
    """Add three unreadable images to a folder: no image data, truncated data, and an unsupported mode."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    (folder / "000-none.png").write_bytes(b"no image")
    Image.fromarray(noise).save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:2000])
    Image.new("I;16", (9, 9)).save(folder / "deep.png")
