"""Which of a table's columns is what, and what its labels mean: from a table to a set of images or texts."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
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
from hydractl.progress import SILENT, Progress
from hydractl.tasks import MULTI_LABEL, SINGLE_LABEL, TASKS

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
    places = range(table.first, table.first + len(table))
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
    columns = text_columns(table, ref, SILENT if table.first else progress, pairs=pairs)
    cells = [
        [
            _checked(cell, f"{table.place(c)}: row {row}")
            for row, cell in enumerate(table.cells(c), table.first)
        ]
        for c in columns
    ]
    label = label_column(table, ref) if labelled else None
    texts: tuple[Text, ...] = tuple(zip(*cells, strict=True)) if len(cells) > 1 else tuple(cells[0])
    keys = tuple(range(table.first, table.first + len(table))) if table.first else ()
    labels = _labels(table, label, progress)
    return TextSet(texts=texts, keys=keys, name=table.name, columns=tuple(table.columns), **labels._asdict())


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


class LabelReader:
    """Reads a column of labels as its rows come; memory holds each label once, and a number a row."""

    def __init__(self, names: Sequence[str] | None, *, where: str, separator: str | None = None) -> None:
        """Wait for the first of them; arguments as of `read_labels`."""
        self._names = names
        self._separator = separator
        self.where = where
        self._task = SINGLE_LABEL
        self._withheld = 0
        self._codes = array("q")
        self._texts: dict[str, int] = {}
        self._lists: list[tuple[int | str, ...]] = []

    def add(self, cells: Sequence[object]) -> None:
        """Read the labels of the next rows.

        Raises:
            DataError: As `read_labels`.
        """
        begin = self._withheld + len(self._codes) + len(self._lists)
        cells = self._as_task(cells, begin)
        if self._task.by_label:
            self._add_lists(cast("Sequence[list[Any]]", cells), begin)
            return
        values = [self.label(row, cell) for row, cell in enumerate(cells, begin)]
        if not self._codes and all(value == UNKNOWN for value in values):
            self._withheld += len(values)
            return
        rows = [UNKNOWN, *values] if self._withheld else values
        top = len(self._names) - 1 if self._names is not None else None
        for row, value in enumerate(rows, 0 if self._withheld else begin):
            if isinstance(value, int) and (value < 0 or (top is not None and value > top)):
                raise DataError(
                    f"{self.where}: row {row} has label {value}, out of range 0..{'' if top is None else top}",
                    hint=(
                        "count the labels from 0, or use class names; -1 means unlabelled only if every label is -1"
                    ),
                )
        self._codes.extend(
            self._texts.setdefault(str(value), len(self._texts))
            if self._names is None
            else _index(value, self._names, row, self.where)
            for row, value in enumerate(values, begin)
        )

    def _as_task(self, cells: Sequence[object], begin: int) -> Sequence[object]:
        """Return what cells say in the form of a task that has one of its own, which all rows have then; else cells as they are."""
        for task, path in ((task, task.cell) for task in TASKS.values() if task.cell and cells):
            labels = [*map(load(path), cells)]
            if task is not self._task and all(label is None for label in labels):
                continue
            begins_late = begin > 0 and task is not self._task
            if begins_late or None in labels:
                row = begin if begins_late else begin + labels.index(None)
                raise DataError(
                    f"{self.where}: row {row} and others differ: give {task.labels}, or for none",
                    hint=task.hint.format(name=self.where),
                )
            self._task = task
            return labels
        return cells

    def _add_lists(self, lists: Sequence[list[Any]], begin: int) -> None:
        """Read the lists of labels of the next rows."""
        top = math.inf if self._names is None else len(self._names) - 1
        for row, cell in enumerate(lists, begin):
            values = tuple(self.label(row, int(v) if isinstance(v, bool) else v) for v in cell)
            wrong = (v for v in values if (v < 0 or v > top if isinstance(v, int) else top < math.inf))
            if (value := next(wrong, None)) is not None:
                raise DataError(
                    f"{self.where}: row {row} has label {value}, which is no class number"
                    + (f" in 0..{top}" if self._names is not None else "")
                )
            self._lists.append(values)

    def label(self, row: int, cell: object) -> int | str:
        """Return a label as every form of table has it: a whole number however it is written, or a name without blanks around it."""
        value = str(cell) if isinstance(cell, bool) else cell.strip() if isinstance(cell, str) else cell
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value) if value.lstrip("-").isdigit() else float(value)
        if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
            return int(value)
        if value == "" or not isinstance(value, int | str) or is_unreadable_list(str(value)):
            raise DataError(
                f"{self.where}: row {row} has an invalid label: {cell!r:.80}",
                hint='labels must be names or integers; write lists in JSON, `["bad", "long"]`; for cells such as `bad|long` add `::label-separator=|` in quotes',
            )
        return value

    @property
    def withheld(self) -> bool:
        """Whether no label was told so far, though rows were read."""
        return bool(self._withheld and not self._codes)

    @property
    def texts(self) -> Sequence[str]:
        """What was told so far, each once, where no names are declared."""
        return tuple(self._texts)

    def labels(self, progress: Progress) -> Labels:
        """Return what was read so far, as `read_labels` does."""
        if self._lists:
            return self._label_sets()
        if not self._codes:
            progress.warn(f"{self.where}: every label is {UNKNOWN}, so the items are unlabelled")
            return Labels()
        if self._names is not None:
            return Labels(tuple(self._names), tuple(self._codes), task=self._task)
        if self._separator is None and (separator := separator_in(self._texts)):
            raise DataError(
                f"{self.where}: labels such as `{next(t for t in self._texts if separator in t)}` look like several labels in one cell",
                hint=f"add `::label-separator={'comma' if separator == ',' else separator}` in quotes, or `::label-separator={AS_IS}` if they are names",
            )
        if self._separator is None and (
            several := next((t for t in self._texts if "|" in t or ";" in t), None)
        ):
            progress.warn(
                f"{self.where}: reads `{several}` as one name; for several labels in a cell add "
                f"`::label-separator={'|' if '|' in several else ';'}` in quotes, for one name `::label-separator={AS_IS}`"
            )
        numbered = are_numerals(self._texts)
        class_names = sorted(self._texts, key=int) if numbered else sorted(self._texts)
        position = {self._texts[text]: index for index, text in enumerate(class_names)}
        return Labels(tuple(class_names), tuple(position[code] for code in self._codes), numbered, self._task)

    def _label_sets(self) -> Labels:
        """Return the labels of lists: of names or class numbers, or with a 0 or 1 for each class where all rows have as many."""
        width = len(self._lists[0])
        if self._names is None and width > 1 and all(_is_multi_hot(values, width) for values in self._lists):
            if all({*values} == {0, 1} for values in self._lists) and width == 2:
                raise DataError(
                    f"{self.where}: every list is a 0 and a 1, which may be class numbers or which classes apply",
                    hint="write the names of the classes instead",
                )
            hot = tuple(tuple(i for i, value in enumerate(values) if value) for values in self._lists)
            return Labels(tuple(map(str, range(width))), numbered=True, labels=hot, task=MULTI_LABEL)
        texts = {str(value) for values in self._lists for value in values}
        if not texts:
            raise DataError(f"{self.where}: every list of labels is empty")
        numbered = self._names is None and are_numerals(texts)
        class_names = self._names or sorted(texts, key=int if numbered else None)
        position = {text: i for i, text in enumerate(class_names)} if self._names is None else None
        sets = (
            sorted({int(v) if position is None else position[str(v)] for v in values})
            for values in self._lists
        )
        return Labels(tuple(class_names), tuple(map(tuple, sets)), numbered, MULTI_LABEL)


def _is_multi_hot(values: Sequence[int | str], width: int) -> bool:
    return len(values) == width and {*values} <= {0, 1}


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
    reader = LabelReader(names, where=where, separator=separator)
    reader.add(values)
    return reader.labels(progress)


def _index(value: object, names: Sequence[str], row: int, where: str) -> int:
    if not isinstance(value, int):
        raise DataError(
            f"{where}: row {row} has the label {value!r}, but must have an index into {len(names)} class names"
        )
    return value
