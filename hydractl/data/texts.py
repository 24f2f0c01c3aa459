"""Texts, alone or in pairs: out of a table's columns, or one file each in a folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from hydractl.data.folder import TEXT_FILES, list_files
from hydractl.data.images import read_bytes
from hydractl.data.items import Content, Items
from hydractl.data.listed import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    UNLABELLED,
    find_column,
    read_labels,
)
from hydractl.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hydractl.data.reference import DataRef
    from hydractl.progress import Progress

Text: TypeAlias = "str | tuple[str, str]"
"""One text, or two that belong together, as a premise and a hypothesis do."""

PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
)
PAIRED = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextSet(Items):
    """Texts in memory.

    Attributes:
        texts: One an item.
        name: As in every set.
        class_names: As in every set.
        labels: As in every set.
        numbered: As in every set.
    """

    content = Content.TEXTS

    texts: tuple[Text, ...]
    name: str
    class_names: tuple[str, ...] = ()
    labels: tuple[int, ...] | None = None
    numbered: bool = False

    def __len__(self) -> int:
        return len(self.texts)

    def text(self, index: int) -> Text:
        """Return one text, or a pair."""
        return self.texts[index]

    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of one text or pair; where it was read from does not count."""
        return hashlib.sha256(json.dumps(self.texts[index]).encode()).digest()

    def selected(
        self,
        indices: tuple[int, ...],
        *,
        class_names: tuple[str, ...],
        labels: tuple[int, ...] | None,
        name: str,
    ) -> TextSet:
        """See `Items.selected`."""
        texts = tuple(self.texts[index] for index in indices)
        return replace(self, texts=texts, name=name, class_names=class_names, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as texts are read out of it.

    Attributes:
        columns: Their names.
        read: Returns a column.
        classes: Returns the class names that the table declares for a column of labels, if any.
        where: What messages call the table.
        name: What reports call it.
    """

    columns: Sequence[str]
    read: Callable[[str], Sequence[object]]
    classes: Callable[[str], Sequence[str] | None]
    where: str
    name: str


def texts_of_table(table: Table, ref: DataRef, progress: Progress) -> TextSet:
    """Return the texts that a table holds.

    Args:
        table: At least one row.
        ref: Names the columns.
        progress: Hears warnings.

    Raises:
        DataError: If a column is missing or a cell is no text or no label.
    """
    columns = text_columns(table.columns, wanted=ref.text_columns, where=table.where)
    cells = [
        [_checked(cell, f"{table.where}: column `{c}`: row {row}") for row, cell in enumerate(table.read(c))]
        for c in columns
    ]
    label = find_column(table.columns, wanted=ref.label, usual=LABEL_COLUMNS, role="label", where=table.where)
    found = UNLABELLED
    if label is not None:
        found = read_labels(
            table.read(label),
            names=table.classes(label),
            where=f"{table.where}: column `{label}`",
            progress=progress,
        )
    texts: tuple[Text, ...] = tuple(zip(*cells, strict=True)) if len(columns) == PAIRED else tuple(cells[0])
    return TextSet(texts=texts, name=table.name, **found._asdict())


def text_columns(columns: Sequence[str], *, wanted: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the column that holds the texts, or the two that hold pairs of them.

    Without `wanted`, usual names are looked for, pairs first.

    Raises:
        DataError: If one is missing.
    """
    if wanted:
        for name in wanted:
            find_column(columns, wanted=name, usual=(), role="text", where=where)
        return wanted
    for pair in PAIR_COLUMNS:
        if {*pair} <= {*columns}:
            return pair
    single = next((name for name in TEXT_COLUMNS if name in columns), None)
    if single is not None:
        return (single,)
    present = ", ".join(f"`{name}`" for name in columns)
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    raise DataError(
        f"{where}: none of its columns ({present}) is called {', '.join(f'`{name}`' for name in TEXT_COLUMNS)}, "
        "and the model reads texts",
        hint=f"column `{image}` looks like images, which this model cannot read; name a column of texts: `::text=COLUMN`"
        if image
        else "name the column with the texts: `::text=COLUMN`, or `::text=FIRST+SECOND` for pairs",
    )


def open_text_folder(ref: DataRef, progress: Progress) -> TextSet:
    """Return the .txt files under a folder, each one text; one sub-folder a class, or files alone.

    Raises:
        DataError: If there is none, or one is blank or not UTF-8.
    """
    found = list_files(ref, TEXT_FILES, progress)
    texts = []
    for file in found.files:
        path = found.root / file
        try:
            text = read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
        if not text.strip():
            raise DataError(f"{path}: holds no text", hint="remove the file or write something into it")
        texts.append(text)
    return TextSet(
        texts=tuple(texts),
        name=found.root.resolve().name,
        class_names=found.class_names,
        labels=found.labels,
    )


def refuse_image_keys(ref: DataRef) -> None:
    """Refuse a reference that asks for images where texts are wanted.

    Raises:
        UsageError: If it names a column of images.
    """
    if ref.image is not None:
        raise UsageError(
            f"`image={ref.image}` names a column of images, and the model reads texts",
            hint="name the column with the texts: `::text=COLUMN`",
        )


def _checked(cell: object, where: str) -> str:
    """Return a cell that is a text; an empty one is as good as any."""
    if not isinstance(cell, str):
        raise DataError(f"{where} is no text: {cell!r}")
    try:
        cell.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} is not valid Unicode: {error.reason}") from error
    return cell
