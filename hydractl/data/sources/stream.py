"""Streams: images or texts that come one after another, nobody knows how many; memory holds those of one part at a time.

One that is gone over several times is known once it has passed: what it holds, and that it is the same each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from hydractl.data.datasets import Classed, Content, Items, Labels, fingerprint_of
from hydractl.data.reference import ENDLESS_HINT
from hydractl.data.sources.column_roles import LabelReader
from hydractl.data.sources.tables import DataTable, RowStream
from hydractl.errors import DataError
from hydractl.messages import counted
from hydractl.progress import Progress

BATCHES = 16
"""Number of batches whose rows are read at a time; texts are sorted by length within them, whatever their storage."""
DIGEST = np.dtype("<u8")
"""The first eight bytes of an item's digest. A collision among ten million items occurs less than once in a
million runs.
"""
ROWS = 64
"""Number of rows read at a time if they are stored one by one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemStream(Classed):
    """Images or texts in the order of a stream. Labels come with the rows; classes are those that are declared beforehand.

    Attributes:
        content: What the items are.
        most: How many there are at most; None where nobody knows.
        decoding: As in `Items`.
        rows: Where they come from.
        make_items: Makes items of some rows, without labels.
        column: Where labels are; None where there are none.
        place: What messages call it.
    """

    content: Content
    most: int | None
    decoding: str
    rows: RowStream
    make_items: Callable[[DataTable], Items]
    column: str | None = None
    place: str = ""

    def key(self, index: int) -> int:
        """Return what a user finds an item by: its row number in the stream."""
        return index

    def parts(self, sizes: Iterable[int]) -> Iterator[Items]:
        """Yield so many items after so many, fewer where the stream ends; keys go on from part to part.

        Raises:
            HubError: If the stream breaks off.
            DataError: If some rows cannot be read.
        """
        yield from map(self.make_items, self.rows.tables(sizes))

    def labelled(self, sizes: Iterable[int]) -> Iterator[tuple[Items, Sequence[object]]]:
        """Yield what `parts` does from the first on, and what stands in the column of labels beside each; raises as there."""
        for table in self.rows.tables(sizes):
            yield self.make_items(table), () if self.column is None else table.cells(self.column)

    def reader(self) -> LabelReader | None:
        """Return what makes labels of such cells, None where there are none."""
        return None if self.column is None else LabelReader(self.class_names or None, where=self.place)

    def mended(self, mend: Callable[[Items], Items]) -> ItemStream:
        """Return the stream, something done to each of its parts."""
        return replace(self, make_items=lambda table: mend(self.make_items(table)))


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
                f"{self.name}: row {begin + int(differ[0])} has changed since the stream was first read",
                hint=ENDLESS_HINT,
            )
        if len(expected) < len(digests):
            raise DataError(
                f"{self.name}: continues after row {len(self) - 1}, its end when it was first read",
                hint=ENDLESS_HINT,
            )

    def check_whole(self, end: int) -> None:
        """Refuse an end after so many rows, if there were more.

        Raises:
            DataError: If there were.
        """
        if end < len(self):
            raise DataError(
                f"{self.name}: ends after {counted(end, 'row')}, but had {len(self)} when it was first read",
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
                len(self),
                labels.class_names,
                labels.labels,
                item_digests,
                decoding=self.decoding,
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
            stream.labelled(repeat(ROWS)), label=f"{stream.name}, in chunks of {ROWS} rows", total=None
        )
        for items, cells in parts:
            digests = digests_of(items)
            recorder.add(digests, marks_of(digests, cells), cells)
        digest = recorder.finish(progress)
        return cls(
            name=digest.name,
            class_names=digest.class_names,
            labels=digest.labels,
            task=digest.task,
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
