"""What DATA name: sets of images or texts, one after another, or lines of standard input as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from hydractl.data.crew import Crew
from hydractl.data.given import GivenStore
from hydractl.data.inputs import Reading, content_of, crewed, open_items
from hydractl.data.items import Content, ImageSet, Items, TextSet
from hydractl.data.reference import SOURCES_HINT
from hydractl.errors import DataError, UsageError
from hydractl.jsonfile import opened
from hydractl.progress import Progress
from hydractl.stages.predict.config import LINES, PredictConfig, is_file

LONGEST = 1 << 20
"""Of a line, in bytes."""


class Source(NamedTuple):
    """A set, and what lines call it where the number of a row does not tell which row it is."""

    name: str | None
    items: Items


def open_sources(config: PredictConfig, how: Reading, progress: Progress) -> list[Source]:
    """Open all DATA but standard input; image files that stand side by side are one set.

    Raises:
        DataError: If one cannot be opened.
        UsageError: If image files are named for a model of texts.
    """
    made: list[tuple[str, Items]] = []
    for files, group in groupby(config.data, is_file):
        named = list(group)
        if files:
            made.append((named[0], crewed(_files(named, how), config.num_workers)))
        else:
            opened = partial(
                open_items, how=how, labelled=False, workers=config.num_workers, progress=progress
            )
            made += [(given, opened(given)) for given in named]
    counted = [items for _, items in made if isinstance(items.key(0), int)]
    return [Source(name if items in counted and len(counted) > 1 else None, items) for name, items in made]


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


def forgiving(items: Items) -> Items:
    """Return images that may be unreadable.

    Raises:
        UsageError: If they are texts.
    """
    if not isinstance(items, ImageSet):
        raise UsageError("`--skip-bad` is for images, but the model reads texts", hint="leave it out")
    return replace(items, lenient=True)
