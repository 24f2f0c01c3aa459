"""Images listed in a table: which column is what, and what its labels mean."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hydractl.data.images import ImageSet, decode, read_bytes
from hydractl.data.labels import are_numerals
from hydractl.data.reference import did_you_mean
from hydractl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from PIL import Image

    from hydractl.progress import Progress

IMAGE_COLUMNS = ("image", "img", "file_name", "path", "file")
TEXT_COLUMNS = ("text", "sentence", "content", "review", "document", "comment", "tweet", "body")
LABEL_COLUMNS = ("label", "labels", "class", "fine_label")
UNKNOWN = -1
"""What Hub data sets write where a label is withheld."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSet(ImageSet):
    """Images that a table's rows name or hold.

    Attributes:
        count: How many rows.
        read: Returns a row's encoded image, or the file that holds it; safe to call from several threads.
        where: What messages call the table.
        name: As in every set.
        class_names: As in every set.
        labels: As in every set.
        numbered: As in every set.
    """

    count: int
    read: Callable[[int], bytes | Path]
    where: str
    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    numbered: bool = False

    def __len__(self) -> int:
        return self.count

    def image(self, index: int) -> Image.Image:
        """Decode the image of one row."""
        return decode(self._encoded(index), where=f"{self.where}: row {index}")

    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of the encoded image; how the table names it does not count."""
        return hashlib.sha256(self._encoded(index)).digest()

    def _encoded(self, index: int) -> bytes:
        held = self.read(index)
        return held if isinstance(held, bytes) else read_bytes(held)


class Labels(NamedTuple):
    """What a column says of the items; as in every set."""

    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    numbered: bool = False


UNLABELLED = Labels((), None)


def find_column(
    columns: Sequence[str], *, wanted: str | None, usual: Sequence[str], role: str, where: str
) -> str | None:
    """Return the column named by the reference, else the first usual one that is there, else None.

    Raises:
        DataError: If the reference names a column that is not there.
    """
    if wanted is None:
        return next((name for name in usual if name in columns), None)
    if wanted not in columns:
        present = ", ".join(f"`{name}`" for name in columns)
        raise DataError(
            f"{where}: has no column `{wanted}` for `{role}=`; its columns are {present}",
            hint=did_you_mean(wanted, columns),
        )
    return wanted


def image_column(columns: Sequence[str], *, wanted: str | None, where: str) -> str:
    """Return the column that holds the images.

    Raises:
        DataError: If there is none.
    """
    found = find_column(columns, wanted=wanted, usual=IMAGE_COLUMNS, role="image", where=where)
    if found is None:
        present = ", ".join(f"`{name}`" for name in columns)
        text = next((name for name in TEXT_COLUMNS if name in columns), None)
        raise DataError(
            f"{where}: none of its columns ({present}) is called {', '.join(f'`{name}`' for name in IMAGE_COLUMNS)}",
            hint=f"column `{text}` looks like texts, which this model cannot read"
            if text
            else "name the column with the images: `::image=COLUMN`",
        )
    return found


def read_labels(
    values: Sequence[object], *, names: Sequence[str] | None, where: str, progress: Progress
) -> Labels:
    """Turn a column into class names and labels.

    Args:
        values: One a row: strings, whole numbers from 0, or -1 in every row where labels are withheld.
        names: The class names if the table declares them; `values` are then indices into it.
        where: What messages call the table and column.
        progress: Hears that labels are withheld.

    Returns:
        The class names (numbers sort as numbers) and one label a row, or `UNLABELLED`. Where a table does not declare names
            and all labels are whole numbers, they are numbers and no names, in a .csv file too, whose cells are all text.

    Raises:
        DataError: If a value is missing, of another type, or out of range.
    """
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise DataError(
                f"{where}: row {row} has no usable label: {value!r}", hint="labels are names or whole numbers"
            )
    if all(value == UNKNOWN for value in values):
        progress.warn(f"{where}: every label is {UNKNOWN}, so the items count as unlabelled")
        return UNLABELLED
    top = len(names) - 1 if names is not None else None
    for row, value in enumerate(values):
        if isinstance(value, int) and (value < 0 or (top is not None and value > top)):
            raise DataError(
                f"{where}: row {row} has label {value}, out of range 0..{'' if top is None else top}"
            )
    if names is not None:
        return Labels(
            tuple(names), tuple(_index(value, names, row, where) for row, value in enumerate(values))
        )
    texts = [str(value) for value in values]
    numbered = are_numerals(texts)
    found = sorted(set(texts), key=int) if numbered else sorted(set(texts))
    position = {name: index for index, name in enumerate(found)}
    return Labels(tuple(found), tuple(position[text] for text in texts), numbered)


def _index(value: object, names: Sequence[str], row: int, where: str) -> int:
    if not isinstance(value, int):
        raise DataError(
            f"{where}: row {row} has {value!r} where an index into {len(names)} class names belongs"
        )
    return value
