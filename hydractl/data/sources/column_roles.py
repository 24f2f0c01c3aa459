"""Which of a table's columns is what, and what its labels mean: from a table to a set of images or texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from PIL import Image
from typing_extensions import override

from hydractl.data.datasets import ImageSet, ImageStore, Labels, Text, TextSet
from hydractl.data.decoding import decode, encoded_digest, read_bytes
from hydractl.data.labels import are_numerals
from hydractl.data.reference import DataRef
from hydractl.data.sources.lists import AS_IS, is_unreadable_list, separator_in
from hydractl.data.sources.tables import Cell, DataTable, FileSpan, ImageFiles, Read
from hydractl.data.sources.text_columns import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    find_column,
    text_columns,
    usual_texts,
)
from hydractl.errors import DataError
from hydractl.messages import quoted
from hydractl.plugins import load
from hydractl.progress import Progress
from hydractl.tasks import MULTI_LABEL, SINGLE_LABEL, TASKS, Task

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?")
UNKNOWN = -1
"""Label of unlabelled rows in data sets of the Hub."""


@dataclass(frozen=True, slots=True)
class HeldCells:
    """Some rows' images, or why there is none."""

    cells: Mapping[int, Cell | DataError]

    def __call__(self, index: int) -> Cell:
        """Return a row's image."""
        cell = self.cells[index]
        if isinstance(cell, DataError):
            raise cell
        return cell


@dataclass(frozen=True, slots=True)
class CellStore(ImageStore):
    """The images of a table: `read` gives a row's, `where` is what messages call the table."""

    read: Read
    where: str

    @override
    def only(self, places: Sequence[int]) -> CellStore:
        return CellStore(HeldCells({place: self._cell_or_error(place) for place in places}), self.where)

    @override
    def check_there(self, places: Sequence[int]) -> None:
        if isinstance(self.read, ImageFiles):
            for place in places:
                self.read(place)

    def _cell_or_error(self, place: int) -> Cell | DataError:
        """Return what is held of an image, or why there is none: who decodes it says so."""
        try:
            return self.read(place)
        except DataError as error:
            return error

    @override
    def image(self, index: int) -> Image.Image:
        return decode(self._encoded(index), where=f"{self.where}: row {index}")

    @override
    def item_digest(self, index: int) -> bytes:
        """Return the digest of the encoded image and its pixels; its name in the table does not count."""
        return encoded_digest(self._encoded(index))

    def _encoded(self, index: int) -> bytes:
        cell = self.read(index)
        if isinstance(cell, FileSpan):
            return cell.read()
        return cell if isinstance(cell, bytes) else read_bytes(cell)


def images_of(table: DataTable, ref: DataRef, progress: Progress, *, labelled: bool = True) -> ImageSet:
    """Return the images that a table lists or holds.

    Raises:
        DataError: If a column is missing or holds something else.
    """
    image = find_column(table, column=ref.image, usual=IMAGE_COLUMNS, role="image")
    if image is None:
        _, text = usual_texts(table)
        raise DataError(
            f"{table.where}: none of its columns ({quoted(table.columns)}) has one of the names {quoted(IMAGE_COLUMNS)}",
            hint=f"column `{text}` seems to contain texts, which this model cannot read"
            if text
            else "select the column with the images: `::image=COLUMN`",
        )
    label = label_column(table, ref) if labelled else None
    store = CellStore(table.images(image), table.where)
    labels = _labels(table, label, progress)
    places = range(len(table))
    return ImageSet(
        store=store, places=places, name=table.name, columns=tuple(table.columns), **labels._asdict()
    )


def texts_of(
    table: DataTable, ref: DataRef, progress: Progress, *, labelled: bool = True, pairs: bool | None = None
) -> TextSet:
    """Return the texts that a table holds.

    Raises:
        DataError: If a column is missing or a cell is no text or no label.
    """
    columns = text_columns(table, ref, progress, pairs=pairs)
    cells = [
        [_checked(cell, f"{table.place(c)}: row {row}") for row, cell in enumerate(table.cells(c))]
        for c in columns
    ]
    label = label_column(table, ref) if labelled else None
    texts: tuple[Text, ...] = tuple(zip(*cells, strict=True)) if len(cells) > 1 else tuple(cells[0])
    labels = _labels(table, label, progress)
    return TextSet(texts=texts, name=table.name, columns=tuple(table.columns), **labels._asdict())


def _checked(cell: object, where: str) -> str:
    """Return a cell that is a text; one that is missing is empty, as .csv files cannot tell the two apart."""
    if cell is None or cell != cell:  # noqa: PLR0124 - NaN, which pandas writes for what is missing
        return ""
    if not isinstance(cell, str):
        raise DataError(f"{where} is not a string: {cell!r:.80}")
    return cell


def label_column(table: DataTable, ref: DataRef) -> str | None:
    """Return the column of labels, None where there is none.

    Raises:
        DataError: If the reference names one that is missing.
    """
    return find_column(table, column=ref.label, usual=LABEL_COLUMNS, role="label")


def _labels(table: DataTable, column: str | None, progress: Progress) -> Labels:
    if column is None:
        return Labels()
    return read_labels(
        table.label_cells(column),
        names=table.classes(column),
        where=table.place(column),
        separator=table.label_separator,
        progress=progress,
    )


def read_labels(
    values: Sequence[object],
    *,
    names: Sequence[str] | None,
    where: str,
    progress: Progress,
    separator: str | None = None,
) -> Labels:
    """Turn a column into class names and labels.

    Args:
        values: One a row: strings, whole numbers from 0, or -1 in every row where labels are withheld; or lists of the former
            two, of the items that may have several, or of 0 and 1 for each class.
        names: The class names if the table declares them; `values` are then indices into it.
        where: What messages call the table and column.
        progress: Hears that labels are withheld.
        separator: Value of `label-separator=`. If it is None, names that look like several labels are refused.

    Returns:
        The class names (numbers sort as numbers) and one label a row, or none. Where a table does not declare names
            and all labels are whole numbers, they are numbers and no names, in a .csv file too, whose cells are all text.

    Raises:
        DataError: If a value is missing, of another type, or out of range.
    """
    task, cells = _cells_of_task(values, where)
    if task.by_label:
        return _label_sets(cells, names, where)
    labels = [label_of(cell, f"{where}: row {row}") for row, cell in enumerate(cells)]
    if all(label == UNKNOWN for label in labels):
        progress.warn(f"{where}: every label is {UNKNOWN}, so the items are unlabelled")
        return Labels()
    top = math.inf if names is None else len(names) - 1
    for row, label in enumerate(labels):
        if isinstance(label, int) and not 0 <= label <= top:
            raise DataError(
                f"{where}: row {row} has label {label}, out of range 0..{'' if names is None else top}",
                hint="count the labels from 0, or use class names; -1 means unlabelled only if every label is -1",
            )
        if names is not None and not isinstance(label, int):
            raise DataError(
                f"{where}: row {row} has the label {label!r}, but must have an index into {len(names)} class names"
            )
    if names is not None:
        return Labels(tuple(names), cast("tuple[int, ...]", tuple(labels)), task=task)
    texts = dict.fromkeys(map(str, labels))
    if separator is None:
        _check_separators(texts, where, progress)
    numbered = are_numerals(texts)
    class_names = sorted(texts, key=int if numbered else None)
    position = {text: index for index, text in enumerate(class_names)}
    return Labels(tuple(class_names), tuple(position[str(label)] for label in labels), numbered, task)


def _cells_of_task(cells: Sequence[object], where: str) -> tuple[Task, Sequence[Any]]:
    """Return the task that the form of the cells shows, and the cells in that form.

    Raises:
        DataError: If only some cells have the form of a task.
    """
    for task, path in ((task, task.cell) for task in TASKS.values() if task.cell and cells):
        labels = [*map(load(path), cells)]
        if all(label is None for label in labels):
            continue
        if None in labels:
            raise DataError(
                f"{where}: row {labels.index(None)} and others differ: give {task.labels}, or for none",
                hint=task.hint.format(name=where),
            )
        return task, labels
    return SINGLE_LABEL, cells


def label_of(cell: object, place: str) -> int | str:
    """Return a label of any form of table: a whole number in any notation, or a name without blanks around it.

    Args:
        cell: The cell.
        place: What messages call the cell.

    Raises:
        DataError: If it is neither.
    """
    value = str(cell) if isinstance(cell, bool) else cell.strip() if isinstance(cell, str) else cell
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value) if value.lstrip("-").isdigit() else float(value)
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        return int(value)
    if value == "" or not isinstance(value, int | str) or is_unreadable_list(str(value)):
        raise DataError(
            f"{place} has an invalid label: {cell!r:.80}",
            hint='labels must be names or integers; write lists in JSON, `["bad", "long"]`; for cells such as `bad|long` add `::label-separator=|` in quotes',
        )
    return value


def _check_separators(names: Iterable[str], where: str, progress: Progress) -> None:
    """Refuse names that look like several labels in one cell, and warn about names that may be."""
    if separator := separator_in(names):
        raise DataError(
            f"{where}: labels such as `{next(t for t in names if separator in t)}` look like several labels in one cell",
            hint=f"add `::label-separator={'comma' if separator == ',' else separator}` in quotes, or `::label-separator={AS_IS}` if they are names",
        )
    if several := next((t for t in names if "|" in t or ";" in t), None):
        progress.warn(
            f"{where}: reads `{several}` as one name; for several labels in a cell add "
            f"`::label-separator={'|' if '|' in several else ';'}` in quotes, for one name `::label-separator={AS_IS}`"
        )


def _label_sets(cells: Sequence[list[Any]], names: Sequence[str] | None, where: str) -> Labels:
    """Return the labels of lists: of names or class numbers, or with a 0 or 1 for each class where all rows have as many.

    Raises:
        DataError: If a label is no class number, or the lists have two meanings or are all empty.
    """
    top, lists = math.inf if names is None else len(names) - 1, list[tuple[int | str, ...]]()
    for row, cell in enumerate(cells):
        values = tuple(label_of(int(v) if isinstance(v, bool) else v, f"{where}: row {row}") for v in cell)
        wrong = (v for v in values if (v < 0 or v > top if isinstance(v, int) else top < math.inf))
        if (value := next(wrong, None)) is not None:
            raise DataError(
                f"{where}: row {row} has label {value}, which is no class number"
                + (f" in 0..{top}" if names is not None else "")
            )
        lists.append(values)
    width = len(lists[0])
    if names is None and width > 1 and all(len(row) == width and {*row} <= {0, 1} for row in lists):
        if all({*row} == {0, 1} for row in lists) and width == 2:
            raise DataError(
                f"{where}: every list is a 0 and a 1, which may be class numbers or which classes apply",
                hint="write the names of the classes instead",
            )
        hot = tuple(tuple(i for i, value in enumerate(row) if value) for row in lists)
        return Labels(tuple(map(str, range(width))), numbered=True, labels=hot, task=MULTI_LABEL)
    texts = {str(value) for row in lists for value in row}
    if not texts:
        raise DataError(f"{where}: every list of labels is empty")
    numbered = names is None and are_numerals(texts)
    class_names = names or sorted(texts, key=int if numbered else None)
    position = {text: i for i, text in enumerate(class_names)} if names is None else None
    sets = (sorted({int(v) if position is None else position[str(v)] for v in row}) for row in lists)
    return Labels(tuple(class_names), tuple(map(tuple, sets)), numbered, MULTI_LABEL)
