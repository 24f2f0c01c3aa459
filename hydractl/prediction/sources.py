"""Inputs of `predict`: sets of images or texts in sequence, or lines of standard input as they arrive."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hydractl.data.datasets import Content, Dataset, ImageSet, ImageStore, ItemPreprocess, TextSet, content_of
from hydractl.data.open_dataset import accept_unreadable, open_items, open_lenient, with_workers
from hydractl.data.reference import LINES, SOURCES_HINT, DataRef, image_path, is_file
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Tokenization
from hydractl.strict_json import open_binary

STDIN = "standard input"
LONGEST = 1 << 20
"""Maximum length of a line, in bytes. Chosen by hand; it limits memory for streams without line ends. Twice
the length needs twice the memory."""


class Source(NamedTuple):
    """A data set with its name. The name is None if output lines are clear without it."""

    name: str | None
    items: Dataset


def open_sources(
    references: Sequence[str], preprocess: ItemPreprocess, *, workers: int | None, skip_bad: bool
) -> list[Source]:
    """Open the data of `predict`. Consecutive image files become a single set.

    Args:
        references: Data references, without standard input.
        preprocess: Preprocessing of the model.
        workers: Number of processes that decode images; see `open_items`.
        skip_bad: Whether unreadable images get a line with an error.

    Raises:
        DataError: If a reference cannot be opened.
        UsageError: If image files are given to a text model.
    """
    if isinstance(preprocess, Tokenization):
        preprocess = preprocess.model_copy(
            update={"by_word": False}
        )  # long texts are cut into windows later, block by block
    sets: list[tuple[str, Dataset]] = []
    for files, group in groupby(references, is_file):
        names = list(group)
        if files:
            paths = [path for name in names if (path := image_path(name))]
            sets.append((names[0], with_workers(_files(paths, preprocess), workers)))
        else:
            opened_as = open_lenient if skip_bad and content_of(preprocess) is Content.IMAGES else open_items
            sets += [
                (
                    name,
                    opened_as(DataRef.parse(name), preprocess, labelled=False, workers=workers),
                )
                for name in names
            ]
    counted = [items for _, items in sets if isinstance(items.key(0), int)]
    return [
        Source(
            name if items in counted and len(counted) > 1 else None,
            accept_unreadable(items) if skip_bad else items,
        )
        for name, items in sets
    ]


def _files(paths: Sequence[Path], preprocess: ItemPreprocess) -> ImageSet:
    if content_of(preprocess) is Content.TEXTS:
        raise UsageError(f"`{paths[0]}` is no table or folder of texts, which the model reads")
    for path in paths:
        if not os.path.isfile(path):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
            raise DataError(f"{path}: no such file", hint=SOURCES_HINT)
    store = ImageStore(source=tuple(paths).__getitem__)
    return ImageSet(store=store, places=range(len(paths)), name="image files")


def lines(
    preprocess: ItemPreprocess, *, size: int, workers: WorkerPool | None, null: bool = False
) -> Iterator[Dataset]:
    """Yield the lines of standard input, `size` at a time, as texts or as images by path.

    Keys of texts are line numbers (0-based). Empty lines are texts for text models, and ignored for image
    models.

    Args:
        preprocess: Preprocessing of the model.
        size: Number of lines at a time, at least 1.
        workers: Processes that decode images.
        null: Whether texts or paths end with a NUL byte instead of a line end.

    Raises:
        DataError: If a text is not UTF-8, or a line is longer than `LONGEST`.
    """
    if content_of(preprocess) is Content.TEXTS:
        texts = ((i, _text(line, i)) for i, line in enumerate(_lines(null=null)))
        while chunk := list(islice(texts, size)):
            numbers, chunk_texts = zip(*chunk, strict=True)
            yield TextSet(texts=chunk_texts, keys=numbers, name=STDIN)
        return
    paths = (_path(line, i) for i, line in enumerate(_lines(null=null)) if line)
    while files := tuple(islice(paths, size)):
        yield ImageSet(
            store=ImageStore(source=files.__getitem__), places=range(len(files)), name=STDIN, workers=workers
        )


def _lines(*, null: bool) -> Iterator[bytes]:
    end = b"\0" if null else b"\n"
    try:
        with open_binary(Path(LINES)) as file:
            for i, line in enumerate(_ended(file, end)):
                if len(line) > LONGEST:
                    raise DataError(f"{STDIN}: line {i + 1} is longer than {LONGEST} bytes")
                text = line.removeprefix(codecs.BOM_UTF8) if i == 0 else line
                yield text if null else text.removesuffix(b"\r")
    except OSError as error:
        raise DataError(f"{STDIN}: cannot be read: {error.strerror}") from error


def _ended(file: BinaryIO, end: bytes) -> Iterator[bytes]:
    """Yield the bytes before each `end` as they arrive, and the rest; stop at a line that is too long."""
    pending = b""
    while piece := file.read1(LONGEST):  # type: ignore[attr-defined] # standard input is buffered
        *ended, pending = (pending + piece).split(end)
        yield from ended
        if len(pending) > LONGEST:
            break
    if pending:
        yield pending


def _text(line: bytes, i: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{STDIN}: line {i + 1} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error


def _path(line: bytes, i: int) -> Path:
    """Convert the bytes of a line to a path, which need not be UTF-8."""
    if b"\0" in line:
        raise DataError(
            f"{STDIN}: line {i + 1} contains a NUL byte, which a path cannot", hint="add `--null`"
        )
    return Path(os.fsdecode(line))
