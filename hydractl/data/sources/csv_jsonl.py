"""The rows of .csv, .tsv, .jsonl and .json files, and of lists of images."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from hydractl.data.datasets import Content
from hydractl.data.decoding import read_bytes
from hydractl.data.reference import LIST_SUFFIX
from hydractl.data.sources.text import decode_text
from hydractl.errors import DataError
from hydractl.strict_json import NotJSONError, parse

Rows = list[dict[str, object]]
_EXAMPLES: Mapping[Content, str] = MappingProxyType(
    {
        Content.IMAGES: '{"image": "a.png", "label": "cat"}',
        Content.TEXTS: '{"text": "a good film", "label": "good"}',
    }
)
_DELIMITERS = (",", ";", "\t", "|")
_BEGINNING = 65536
"""How many letters of a table are searched for its delimiter."""
_QUOTES = 'a cell in quotes ends with a quote, and a quote within it is written twice: `"say ""hi"""`'
_INTEGER = re.compile(r"-?[0-9]{1,9}")


def _read_csv(path: Path) -> Rows:
    text = _text_of(path)
    # of the whole process: a limit that is put back would meet what another thread reads
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    lines = _csv_lines(path, text, delimiter)
    line, head = next(lines, (1, []))
    named = [
        name for name in head if name.strip()
    ]  # spreadsheets write columns without a name behind the last one
    if len(set(named)) != len(named):
        raise DataError(f"{path}: line {line}: two columns share a name: {', '.join(head)}")
    rows: Rows = []
    for line, cells in lines:
        if len(cells) != len(head):
            raise DataError(
                f"{path}: line {line} has {len(cells)} cells under {len(head)} columns",
                hint=f'a cell that holds {_named(delimiter)} stands in quotes: `"..."`',
            )
        if delimiter == "\t" and any("\t" in cell and "\n" in cell for cell in cells):
            # files of tabs are often written without quoting, where a text that begins with a quote would swallow rows
            raise DataError(f"{path}: line {line}: a cell in quotes holds tabs and line breaks", hint=_QUOTES)
        rows.append(dict(zip(head, cells, strict=True)))
    return rows


def _csv_lines(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line at which a row begins, from 1, and its cells; blank lines do not count."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    begin = 1
    try:
        for cells in reader:
            if cells:
                yield begin, cells
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}: line {begin} cannot be read as CSV: {error}", hint=_QUOTES) from error


def _delimiter(text: str) -> str:
    """Return what parts the names of the columns: what gives most of them, a comma where that is one.

    Delimiters that part the first row into as many cells go before others: a name of a column may hold a delimiter, too.
    """

    def fit(delimiter: str) -> tuple[bool, int]:
        rows = csv.reader(io.StringIO(text[:_BEGINNING], newline=""), delimiter=delimiter)
        head, *row = [*islice(filter(None, rows), 2)] or [[]]
        return len(head) > 1 and [*map(len, row)] == [len(head)], len(head)

    return max(_DELIMITERS, key=fit)


def _named(delimiter: str) -> str:
    return "a tab" if delimiter == "\t" else f"`{delimiter}`"


def _read_json(path: Path, content: Content) -> Rows:
    """Return the objects of an array, or those that stand one a line."""
    text = _text_of(path)
    rows: Rows = []
    for place, row in _array(path, text) if text.lstrip().startswith("[") else _lines(path, text, content):
        if not isinstance(row, dict):
            raise DataError(f"{path}: {place} is not a JSON object")
        if rows and row.keys() != rows[0].keys():
            odd = sorted(row.keys() ^ rows[0].keys())
            raise DataError(f"{path}: {place} and the first row differ in the key `{odd[0]}`")
        rows.append(row)
    return rows


def _array(path: Path, text: str) -> Iterator[tuple[str, object]]:
    try:
        rows = parse(text)
    except NotJSONError as error:
        line, column = (f"line {error.line} ", f" at column {error.column}") if error.line else ("", "")
        raise DataError(
            f"{path}: {line}is not JSON: {error.words}{column}",
            hint=f"a table is an array of objects, or has an object a line: `jq -c '.[]' {path}` makes such lines",
        ) from error
    for number, row in enumerate(rows):
        yield f"row {number} of the array", row


def _lines(path: Path, text: str, content: Content) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", parse(line)
        except NotJSONError as error:
            column = f" at column {error.column}" if error.column else ""
            raise DataError(
                f"{path}: line {number} is not JSON: {error.words}{column}",
                hint=f"a table is an array of objects, or has an object a line, for example {_EXAMPLES[content]}",
            ) from error


def _read_list(path: Path) -> Rows:
    """Return a row a line: a path, blanks, and a label, a whole number, of which those below 0 say that it has none."""
    rows: Rows = []
    for number, name in enumerate(read_bytes(path).removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        line = os.fsdecode(name).strip()  # a path may be no UTF-8
        image, label = [*line.rsplit(maxsplit=1), "", ""][:2]
        if not line:
            continue
        if not image or not _INTEGER.fullmatch(label):
            raise DataError(
                f"{path}: line {number} is no path with a label after it: `{line[:60]}`",
                hint="a .txt file lists images, one a line: `cats/1.png 3`",
            )
        rows.append({"image": image, "label": int(label)})
    return rows


def _text_of(path: Path) -> str:
    return decode_text(read_bytes(path), where=str(path))


def read_rows(path: Path, content: Content) -> Rows:
    """Return the rows of a file, which its suffix says how to read.

    The delimiter of a .csv file is the one that parts the names of its columns; that of a .tsv file is a tab.

    Args:
        path: Ends in .csv, .tsv, .jsonl, .json or .txt, in any case.
        content: What is looked for, for hints.

    Raises:
        DataError: If it cannot be read, or not as what its suffix says.
    """
    suffix = path.suffix.lower()
    if suffix == LIST_SUFFIX:
        return _read_list(path)
    return _read_csv(path) if suffix in {".csv", ".tsv"} else _read_json(path, content)
