"""The columns of a table that hold its texts, or pairs of texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from hydractl.data.reference import DataRef
from hydractl.data.sources.tables import DataTable
from hydractl.errors import DataError
from hydractl.messages import did_you_mean, quoted
from hydractl.progress import Progress

IMAGE_COLUMNS = ("image", "img", "file_name", "path", "file")
TEXT_COLUMNS = ("text", "sentence", "content", "review", "document", "comment", "tweet", "body")
LABEL_COLUMNS = ("label", "labels", "class", "fine_label")
PAIR_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "query": ("passage", "document", "doc", "text", "context", "answer", "response", "positive"),
        "question": ("sentence", "passage", "document", "context", "paragraph", "answer", "text"),
        "premise": ("hypothesis", "conclusion"),
        "claim": ("evidence", "document", "context", "sentence", "text"),
        "anchor": ("positive",),
        "prompt": ("response", "completion", "answer"),
        "context": ("response",),
        "text": ("hypothesis",),
        "document": ("summary",),
        "article": ("summary",),
        "headline": ("body",),
    }
)
"""Second columns of pairs by the first, as in GLUE, MS MARCO, SQuAD, FEVER and the data sets of sentence-transformers."""
_FIRST_OF_TWO = re.compile(
    r"(?:sentence|sent|text|question|query|doc|document|passage|paragraph|phrase|title|input|utterance|s|q|t)[_ ]?[01a]",
    re.IGNORECASE,
)
"""First names of pairs such as `sentence1`, `sentence2`, and `text_a`, `text_b`."""
_EXAMINED = 100
"""Number of rows that decide whether a column holds texts."""


def find_column(table: DataTable, *, column: str | None, usual: Sequence[str], role: str) -> str | None:
    """Return the column named by the reference, else the first usual one that is there, else None."""
    columns = columns_of(table)
    if column is None:
        return next((columns[name] for name in usual if name in columns), None)
    if column not in columns:
        raise DataError(
            f"{table.where}: has no column `{column}` for `{role}=`; its columns are {quoted(table.columns)}",
            hint=did_you_mean(column, table.columns),
        )
    return columns[column]


def columns_of(table: DataTable) -> dict[str, str]:
    """Return the table's columns by their names, with and without the blanks around these."""
    return {name.strip(): name for name in table.columns} | {name: name for name in table.columns}


def text_columns(
    table: DataTable, ref: DataRef, progress: Progress, *, pairs: bool | None
) -> tuple[str, ...]:
    """Return the column that holds the texts, or the two that hold pairs of texts.

    Pairs come before single texts, except for a model that was trained on single texts.

    Args:
        table: The rows.
        ref: May name the columns.
        progress: Reports a choice among several columns.
        pairs: Whether the model was trained on pairs, None if unknown.

    Raises:
        DataError: If a column is missing, if several pairs are possible, or if the model was trained on pairs and only one of
            several columns with texts has a usual name.
    """
    columns = columns_of(table)
    if ref.text_columns:
        chosen = (find_column(table, column=name, usual=(), role="text") for name in ref.text_columns)
        return tuple(filter(None, chosen))
    two, one = usual_texts(table)
    if two and not (one and pairs is False):
        if len(two) > 1:
            raise _ambiguous(table, ref, two)
        (progress.warn if pairs is False else progress.step)(
            f"{table.where}: reading pairs of texts from the columns {quoted(two[0])}"
            + ("; the model was trained on single texts" if pairs is False else "")
        )
        return tuple(columns[name] for name in two[0])
    if one:
        label = find_column(table, column=ref.label, usual=LABEL_COLUMNS, role="label")
        others = [
            name for name in table.columns if name not in {columns[one], label} and _holds_texts(table, name)
        ]
        if others and pairs:
            raise _ambiguous(table, ref, [(one, other) for other in others])
        if others:
            progress.step(
                f"{table.where}: reading the texts of column `{one}`, and no other ({quoted(others)}); "
                f"`::text={one}+{others[0]}` reads pairs"
            )
        return (columns[one],)
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    raise DataError(
        f"{table.where}: none of its columns ({quoted(table.columns)}) has one of the names "
        f"{quoted(TEXT_COLUMNS)}, but the model reads texts",
        hint=(
            f"column `{image}` seems to contain images, which this model cannot read; select a column "
            "of texts: `::text=COLUMN`"
        )
        if image
        else "select the column with the texts: `::text=COLUMN`, or `::text=FIRST+SECOND` for pairs; for words in strings add "
        "`label=COLUMN,label-separator=space`",
    )


def _ambiguous(table: DataTable, ref: DataRef, pairs: Sequence[tuple[str, str]]) -> DataError:
    options = [shlex.quote(f"{ref.source}::text={first}+{second}") for first, second in pairs]
    return DataError(
        f"{table.where}: several of its columns may hold pairs of texts",
        hint=f"choose the columns: {quoted(options)}; or `::text=COLUMN` for single texts",
    )


def usual_texts(table: DataTable) -> tuple[list[tuple[str, str]], str | None]:
    """Return the pairs of columns with well-known names, and the column of single texts or None."""
    columns = columns_of(table)
    partners = {
        name: (f"{name[:-1]}{chr(ord(name[-1]) + 1)}",) for name in columns if _FIRST_OF_TWO.fullmatch(name)
    }
    pairs = [
        (first, second)
        for first, seconds in {**PAIR_COLUMNS, **partners}.items()
        for second in seconds
        if {first, second} <= {*columns}
    ]
    return pairs, next((name for name in TEXT_COLUMNS if name in columns), None)


def _holds_texts(table: DataTable, column: str) -> bool:
    """Return whether most cells of a column are strings of several words. Columns of unknown types hold no texts."""
    cells: Sequence[object] = ()
    with suppress(DataError):
        cells = table.cells(column, most=_EXAMINED)
    return 2 * sum(isinstance(cell, str) and len(cell.split()) > 1 for cell in cells) > len(cells)
