"""A data set of the Hub that is streamed, made as it is read."""

from __future__ import annotations

import io

import datasets
import numpy as np
from PIL import Image

IMAGES = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["r", "b"]))
TEXTS = datasets.Features(text=datasets.Value("string"), label=datasets.Value("int64"))
WORDS = ("mat", "the cat sat", "a cat on the mat", "sat", "on a mat the cat sat on a mat")


def image(i, side=9):
    file = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (side, side + 2, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "BMP")
    return {"image": {"bytes": file.getvalue(), "path": None}, "label": i % 2}


def text(i):
    return {"text": f"{WORDS[i % 5]} {i}", "label": i}


class Lake:
    """What the Hub streams: `count` rows, as `row` has them; `read` are the rows that were asked for."""

    def __init__(self, count, row=image, features=IMAGES):
        self.count, self.row, self.features = count, row, features
        self.read = []
        self.watch = lambda: None

    def rows(self):
        for i in range(self.count):
            self.read.append(i)
            self.watch()
            yield self.row(i)

    def stream(self, *_, streaming=False, **__):
        assert streaming
        return datasets.IterableDataset.from_generator(self.rows, features=self.features)


def stored(lake, name):
    """The same rows in a file."""
    rows = [lake.row(i) for i in range(lake.count)]
    datasets.Dataset.from_list(rows, features=lake.features).to_parquet(name)
    return name
