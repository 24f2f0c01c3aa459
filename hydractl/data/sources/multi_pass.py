"""Streams that are gone over several times: what is known of one once it has passed, and that it is the same each time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from hydractl.data.datasets import Classed, Content, Items, Labels, fingerprint_of
from hydractl.data.reference import ENDLESS_HINT
from hydractl.data.sources.stream import ItemStream
from hydractl.errors import DataError
from hydractl.messages import counted
from hydractl.progress import Progress

DIGEST = np.dtype("<u8")
"""The first eight bytes of an item's digest: of ten million items no two differ and have the same in a million runs."""
ROWS = 64
"""How many are read at a time where they are held one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamDigest(Classed):
    """What is known of a stream once it has passed.

    Attributes:
        sha256: The fingerprint that the same rows have in a file.
        content: What tells its items, as `DIGEST`.
        marks: What tells its rows, items and labels, as `DIGEST`.
    """

    sha256: str
    content: np.ndarray
    marks: np.ndarray

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.marks)

    def check_same(self, begin: int, marks: bytes) -> None:
        """Refuse rows from row `begin` on that are not those that passed.

        Raises:
            DataError: If there are such.
        """
        digests = np.frombuffer(marks, DIGEST)
        expected = self.marks[begin : begin + len(digests)]
        differ = np.flatnonzero(digests[: len(expected)] != expected)
        if len(differ):
            raise DataError(
                f"{self.name}: row {begin + int(differ[0])} is not what it was when the stream was first read",
                hint=ENDLESS_HINT,
            )
        if len(expected) < len(digests):
            raise DataError(
                f"{self.name}: goes on after row {len(self) - 1}, where it ended when it was first read",
                hint=ENDLESS_HINT,
            )

    def check_whole(self, end: int) -> None:
        """Refuse an end after so many rows, if there were more.

        Raises:
            DataError: If there were.
        """
        if end < len(self):
            raise DataError(
                f"{self.name}: ends after {counted(end, 'row')} and had {len(self)} when it was first read",
                hint=ENDLESS_HINT,
            )


class StreamDigestBuilder:
    """What has passed so far; memory holds a digest and a label a row."""

    def __init__(self, stream: ItemStream) -> None:
        self.name = stream.name
        self.columns = stream.columns
        self.decoding = stream.decoding
        self.reader = stream.reader()
        self.digests = bytearray()
        self.marks = bytearray()
        self.chain = hashlib.sha256()

    def __len__(self) -> int:
        return len(self.marks) // DIGEST.itemsize

    def add(self, digests: Sequence[bytes], marks: bytes, cells: Sequence[object]) -> None:
        """Take note of rows: the digests of their items, `marks_of` them, and their labels.

        Raises:
            DataError: If a label cannot be read.
        """
        self.digests += b"".join(digests)
        self.marks += marks
        self.chain.update(marks)
        if self.reader is not None:
            self.reader.add(cells)

    def finish(self, progress: Progress) -> StreamDigest:
        """Return what is known, all rows having passed."""
        labels = Labels() if self.reader is None else self.reader.labels(progress)
        size = len(self.digests) // len(self)
        item_digests = (bytes(self.digests[at : at + size]) for at in range(0, len(self.digests), size))
        rows = np.frombuffer(self.digests, np.uint8).reshape(len(self), size)
        return StreamDigest(
            name=self.name,
            **labels._asdict(),
            sha256=fingerprint_of(
                len(self), labels.class_names, labels.labels, item_digests, decoding=self.decoding
            ),
            content=rows[:, : DIGEST.itemsize].copy().view(DIGEST).ravel(),
            marks=np.frombuffer(self.marks, DIGEST),
            columns=self.columns,
        )


def digests_of(items: Items) -> list[bytes]:
    """Return the digest of each item.

    Raises:
        DataError: If one cannot be read.
    """
    return [items.item_digest(i) for i in range(len(items))]


def marks_of(digests: Sequence[bytes], cells: Sequence[object]) -> bytes:
    """Return what tells rows by the digests of their items and by their labels, as `DIGEST`; `cells` may be none."""
    row_digests = (
        hashlib.sha256(digest + repr(cell).encode()).digest()
        for digest, cell in zip(digests, cells or repeat(None), strict=False)
    )
    return b"".join(mark[: DIGEST.itemsize] for mark in row_digests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shuffled(Classed):
    """A stream that has passed once and comes again each epoch, shuffled among some rows that are held.

    Attributes:
        stream: The rows.
        digest: What is known of them.
        buffer: How many rows are held to be shuffled.
    """

    stream: ItemStream
    digest: StreamDigest
    buffer: int

    @classmethod
    def of(cls, stream: ItemStream, buffer: int, progress: Progress) -> Shuffled:
        """Go over a stream once; nothing is decoded.

        Raises:
            HubError: If it breaks off.
            DataError: If a row or a label cannot be read.
        """
        progress.step(f"Counting the rows of {stream.name}")
        recorder = StreamDigestBuilder(stream)
        parts = progress.track(
            stream.labelled(repeat(ROWS)), label=f"{stream.name}, {ROWS} rows at a time", total=None
        )
        for items, cells in parts:
            digests = digests_of(items)
            recorder.add(digests, marks_of(digests, cells), cells)
        digest = recorder.finish(progress)
        return cls(
            name=digest.name,
            class_names=digest.class_names,
            labels=digest.labels,
            numbered=digest.numbered,
            columns=digest.columns,
            stream=stream,
            digest=digest,
            buffer=buffer,
        )

    @property
    def content(self) -> Content:
        """What the items are."""
        return self.stream.content

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self.digest)

    def fingerprint(self) -> str:
        """Return that of the same rows in a file."""
        return self.digest.sha256

    def parts(self) -> Iterator[tuple[int, Items]]:
        """Yield the number of the first row of each part, and its items, in the order of the stream.

        Raises:
            HubError: If it breaks off.
            DataError: If rows are not those that passed.
        """
        begin = 0
        for items, cells in self.stream.labelled(repeat(ROWS)):
            self.digest.check_same(begin, marks_of(digests_of(items), cells))
            yield begin, items
            begin += len(items)
        self.digest.check_whole(begin)
