"""What DATA name: sets of images or texts, one after another, or lines of standard input as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from typing_extensions import override

from hydractl.data.given import GivenStore
from hydractl.data.inputs import Reading, content_of, open_items
from hydractl.data.items import Content, ImageSet, ImageStore, Items, TextSet
from hydractl.data.preprocess import to_channels
from hydractl.data.reference import SOURCES_HINT
from hydractl.errors import DataError, UsageError
from hydractl.jsonfile import opened
from hydractl.manifest.header import Preprocess
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
            made.append((named[0], _files(named, how)))
        else:
            made += [(given, open_items(given, how, labelled=False, progress=progress)) for given in named]
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


def lines(how: Reading, *, size: int) -> Iterator[Items]:
    """Yield the lines of standard input, `size` at a time: texts, or paths of images, by their numbers from 0.

    A blank line is a text like any other; of paths blank lines do not count.

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
            yield ImageSet(store=store, places=range(len(read)), name="standard input")


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


@dataclass(frozen=True, slots=True, eq=False)
class Forgiving(ImageStore):
    """Images of which those that cannot be read are black, and remembered."""

    store: ImageStore
    channels: int
    errors: dict[int, str] = field(default_factory=dict)

    @override
    def image(self, index: int) -> Image.Image:
        try:
            return to_channels(self.store.image(index), self.channels)
        except DataError as error:
            self.errors[index] = error.message
            return Image.new("L", (8, 8))

    @override
    def key(self, index: int) -> str | int:
        return self.store.key(index)


def forgiving(items: Items, how: Reading) -> Items:
    """Return images that may be unreadable.

    Raises:
        UsageError: If they are texts.
    """
    if not isinstance(items, ImageSet) or not isinstance(how, Preprocess):
        raise UsageError("`--skip-bad` is for images, but the model reads texts", hint="leave it out")
    return replace(items, store=Forgiving(items.store, how.input_size[0]))


def bad_of(items: Items, index: int) -> str | None:
    """Return why an image could not be read, if it could not."""
    if isinstance(items, ImageSet) and isinstance(items.store, Forgiving):
        return items.store.errors.pop(items.places[index], None)
    return None
