"""What DATA name: sets of images or texts, one after another, or lines of standard input as they come."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from hydractl.data.crew import Crew
from hydractl.data.given import GivenStore
from hydractl.data.inputs import Reading, content_of, crewed, of_kind, open_items, open_stream
from hydractl.data.items import Content, ImageSet, Items, TextSet
from hydractl.data.reference import LIST_SUFFIX, SOURCES_HINT, DataRef
from hydractl.data.sources.stream import Stream
from hydractl.errors import DataError, UsageError
from hydractl.jsonfile import opened
from hydractl.progress import Progress
from hydractl.stages.predict.config import LINES, PredictConfig, is_file, parsed

LONGEST = 1 << 20
"""Of a line, in bytes."""


class Source(NamedTuple):
    """A set, and what lines call it where the number of a row does not tell which row it is."""

    name: str | None
    items: Items | Stream

    @property
    def most(self) -> int | None:
        """How many items there are at most; None where nobody knows."""
        return self.items.most if isinstance(self.items, Stream) else len(self.items)


def open_sources(config: PredictConfig, how: Reading, progress: Progress) -> list[Source]:
    """Open all DATA but standard input; image files that stand side by side are one set.

    Raises:
        DataError: If one cannot be opened.
        UsageError: If image files, or a list of them, are named for a model of texts.
    """
    made: list[tuple[str, Items | Stream]] = []
    for files, group in groupby(config.data, is_file):
        named = list(group)
        if files:
            made.append((named[0], crewed(_files(named, how), config.num_workers)))
        else:
            made += [(given, _opened(parsed(given), config, how, progress)) for given in named]
    counted = [items for _, items in made if isinstance(items.key(0), int)]
    return [Source(name if items in counted and len(counted) > 1 else None, items) for name, items in made]


def _opened(ref: DataRef, config: PredictConfig, how: Reading, progress: Progress) -> Items | Stream:
    """Return what a reference selects: of a stream no more than is read at a time, unless some of its classes are chosen."""
    if content_of(how) is Content.TEXTS and ref.source.lower().endswith(LIST_SUFFIX):
        raise UsageError(
            f"`{ref}`: texts come from a folder of .txt files, a table, or standard input",
            hint=f"one a line: `hydractl predict MODEL - < {shlex.quote(ref.source)}`",
        )
    if ref.streaming is not None and ref.classes is None:
        return open_stream(ref, how, workers=config.num_workers, progress=progress)
    return open_items(ref, how, labelled=False, workers=config.num_workers, progress=progress)


def _files(paths: Sequence[str], how: Reading) -> ImageSet:
    if content_of(how) is Content.TEXTS:
        raise UsageError(f"`{paths[0]}` is an image, but the model reads texts")
    for path in paths:
        if not os.path.isfile(path):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
            raise DataError(f"{path}: no such file", hint=SOURCES_HINT)
    store = GivenStore(tuple(map(Path, paths)))
    return ImageSet(store=store, places=range(len(paths)), name="image files")


def lines(how: Reading, *, size: int, crew: Crew | None) -> Iterator[Items]:
    """Yield the lines of standard input, `size` at a time: texts, or paths of images, by their numbers from 0.

    A blank line is a text like any other; of paths blank lines do not count. Images are read by `crew`.

    Raises:
        DataError: If a line is not UTF-8, or longer than any text.
    """
    texts = content_of(how) is Content.TEXTS
    numbered = ((i, line) for i, line in enumerate(_lines()) if texts or line)
    while some := list(islice(numbered, size)):
        numbers, read = zip(*some, strict=True)
        if texts:
            yield TextSet(texts=read, keys=numbers, name="standard input")
        else:
            store = GivenStore(tuple(map(Path, read)))
            yield ImageSet(store=store, places=range(len(read)), name="standard input", crew=crew)


def _lines() -> Iterator[str]:
    where = "standard input"
    try:
        with opened(Path(LINES)) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b"")):
                if len(line) > LONGEST:
                    raise DataError(f"{where}: line {number} is longer than {LONGEST} bytes")
                try:
                    text = line.decode("utf-8-sig" if number == 0 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{where}: line {number} is not UTF-8 text: {error.reason} at byte {error.start}"
                    ) from error
                yield text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise DataError(f"{where}: cannot be read: {error.strerror}") from error


def forgiving(items: Items | Stream) -> Items | Stream:
    """Return images that may be unreadable.

    Raises:
        UsageError: If they are texts.
    """
    if items.content is not Content.IMAGES:
        raise UsageError("`--skip-bad` is for images, but the model reads texts", hint="leave it out")
    return items.mended(_lenient) if isinstance(items, Stream) else _lenient(items)


def _lenient(items: Items) -> Items:
    return replace(of_kind(items, ImageSet), lenient=True)
