"""A data set of the Hub that is streamed, made as it is read."""

from __future__ import annotations

import io
import tracemalloc
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from hydractl.fusion import inference

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


def of_images(count):
    return Lake(count, image, IMAGES)


def of_texts(count):
    return Lake(count, lambda i: text(i) | {"label": i % 2}, TEXTS)


def serve(monkeypatch, lake, other=None):
    """Let the Hub have a lake as `org/name`, and perhaps another as `org/other`; return the first."""
    lakes = {"hf://datasets/org/name": lake, "hf://datasets/org/other": other}
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *_, **__: ["train"])
    monkeypatch.setattr(datasets, "load_dataset", lambda at, *_, **named: lakes[at].stream(**named))
    return lake


class Held(NamedTuple):
    """The most there was when a row was asked for: memory, in images of the lake; and rows that were read and not answered."""

    memory: float
    waiting: int


def most_held(lake, work, *, batch_size=1):
    """Do `work`, which reads a lake and answers its rows by so many, and return what is held meanwhile."""
    size = len(lake.row(0)["image"]["bytes"])
    seen, answered, respond = [], [], inference.respond

    def counting(*args, **named):
        answered.append(batch_size)
        return respond(*args, **named)

    def watch():
        memory = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
        seen.append((memory, len(lake.read) - sum(answered)))

    lake.watch = watch
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(inference, "respond", counting)
            work()
    finally:
        tracemalloc.stop()
    memory, waiting = (max(column) for column in zip(*seen, strict=True))
    return Held((memory - before) / size, waiting)


def stored(lake, name):
    """The same rows in a file."""
    rows = [lake.row(i) for i in range(lake.count)]
    datasets.Dataset.from_list(rows, features=lake.features).to_parquet(name)
    return name
