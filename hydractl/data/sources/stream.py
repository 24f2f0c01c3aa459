"""Streams: images or texts that come one after another, nobody knows how many; memory holds those of one part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hydractl.data.datasets import Classed, Content, Items
from hydractl.data.sources.column_roles import LabelReader
from hydractl.data.sources.tables import DataTable, RowStream

BATCHES = 16
"""How many batches of rows are read at a time; texts are sorted by length among as many, however they are stored."""


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

    def parts(self, sizes: Iterable[int], *, start: int = 0) -> Iterator[Items]:
        """Yield so many items after so many, from item `start` on, fewer where the stream ends; keys go on from part to part.

        Raises:
            HubError: If the stream breaks off.
            DataError: If some rows cannot be read.
        """
        yield from map(self.make_items, self.rows.tables(sizes, start=start))

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


def parts_of(items: Items | ItemStream, sizes: Iterable[int]) -> Iterator[Items]:
    """Yield so many items of a set or a stream after so many, fewer at its end, and none after that."""
    if isinstance(items, ItemStream):
        yield from items.parts(sizes)
        return
    begin = 0
    for size in sizes:
        if begin >= len(items):
            return
        end = min(begin + size, len(items))
        yield items.subset(range(begin, end))
        begin = end
