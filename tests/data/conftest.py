from __future__ import annotations

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def picture():
    """Draw a random image: `picture(seed, size=(w, h), mode=...)`."""

    def draw(seed, *, size=(9, 7), mode="RGB"):
        values = np.random.Generator(np.random.PCG64(seed)).integers(
            0, 256, (size[1], size[0], 3), dtype=np.uint8
        )
        return Image.fromarray(values).convert(mode)

    return draw


@pytest.fixture
def folder(tmp_path, picture):
    """Folder with two classes, `ant` with three images and `bee` with two, and a hidden file."""
    root = tmp_path / "insects"
    for name, seeds in (("bee", (3, 4)), ("ant", (0, 1, 2))):
        (root / name).mkdir(parents=True)
        for seed in seeds:
            picture(seed).save(root / name / f"{seed}.png")
    (root / ".DS_Store").write_bytes(b"junk")
    return root
