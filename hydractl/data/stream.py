"""Streams: images or texts that come one after another, nobody knows how many; memory holds those of one part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from hydractl.data.items import Content, Items
from hydractl.data.tabular import RowStream, Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Images or texts in the order of a stream.

    Attributes:
        content: What the items are.
        name: What reports call it.
        most: How many there are at most; None where nobody knows.
        rows: Where they come from.
        made: Makes items of some rows.
    """

    content: Content
    name: str
    most: int | None
    rows: RowStream
    made: Callable[[Table], Items]

    def key(self, index: int) -> int:
        """Return what a user finds an item by: its row number in the stream."""
        return index

    def parts(self, sizes: Iterable[int], *, start: int = 0) -> Iterator[Items]:
        """Yield so many items after so many, from item `start` on, fewer where the stream ends; keys go on from part to part.

        Raises:
            HubError: If the stream breaks off.
            DataError: If some rows cannot be read.
        """
        for table in self.rows.tables(sizes, start=start):
            yield self.made(table)

    def mended(self, mend: Callable[[Items], Items]) -> Stream:
        """Return the stream, something done to each of its parts."""
        return replace(self, made=lambda table: mend(self.made(table)))


def parts_of(items: Items | Stream, sizes: Iterable[int]) -> Iterator[Items]:
    """Yield so many items of a set or a stream after so many, fewer at its end, and none after that."""
    if isinstance(items, Stream):
        yield from items.parts(sizes)
        return
    begin = 0
    for size in sizes:
        if begin >= len(items):
            return
        end = min(begin + size, len(items))
        yield items.taken(range(begin, end))
        begin = end
