"""The rows of .csv and .jsonl files, and of lists of images."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hydractl.data.items import Content
from hydractl.data.reference import LIST_SUFFIX
from hydractl.errors import DataError
from hydractl.jsonfile import NotJSONError, parse

Rows = list[dict[str, object]]
_EXAMPLES: Mapping[Content, str] = MappingProxyType(
    {
        Content.IMAGES: '{"image": "a.png", "label": "cat"}',
        Content.TEXTS: '{"text": "a good film", "label": "good"}',
    }
)
_WHOLE = re.compile(r"-?[0-9]{1,9}")


def _read_csv(path: Path) -> Rows:
    try:
        # the BOM that spreadsheets write is no part of the first column's name
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            head = next(reader, None)
            if head is None:
                return []
            if len(set(head)) != len(head):
                raise DataError(f"{path}: two columns share a name: {', '.join(head)}")
            rows: Rows = []
            for cells in reader:
                if cells and len(cells) != len(head):
                    raise DataError(
                        f"{path}: line {reader.line_num} has {len(cells)} cells under {len(head)} columns"
                    )
                if cells:
                    rows.append(dict(zip(head, cells, strict=True)))
            return rows
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from error


def _read_jsonl(path: Path, content: Content) -> Rows:
    rows: Rows = []
    for number, line in enumerate(_text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse(line)
        except NotJSONError as error:
            place = f" at column {error.column}" if error.column else ""
            array = not rows and line.lstrip().startswith("[")
            raise DataError(
                f"{path}: line {number} is not JSON: {error.words}{place}",
                hint=f"each line is an object of its own; `jq -c '.[]' {path}` makes such lines of an array"
                if array
                else f"each line is an object of its own, for example {_EXAMPLES[content]}",
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        if rows and row.keys() != rows[0].keys():
            odd = sorted(row.keys() ^ rows[0].keys())
            raise DataError(f"{path}: line {number} and the first row differ in the key `{odd[0]}`")
        rows.append(row)
    return rows


def _read_list(path: Path) -> Rows:
    """Return a row a line: a path, blanks, and a label, a whole number, of which those below 0 say that it has none."""
    rows: Rows = []
    for number, line in enumerate(_text_of(path).splitlines(), start=1):
        image, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not image or not _WHOLE.fullmatch(label):
            raise DataError(
                f"{path}: line {number} is no path with a label after it: `{line.strip()[:60]}`",
                hint="a .txt file lists images, one a line: `cats/1.png 3`",
            )
        rows.append({"image": image.rstrip(), "label": int(label)})
    return rows


def _text_of(path: Path) -> str:
    """Return what a file says, without the BOM that it may begin with.

    Raises:
        DataError: If it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    hint = f"convert it: `iconv -f WINDOWS-1252 -t UTF-8 {path}`, or save it anew as UTF-8"
    return DataError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}", hint=hint)


def read_rows(path: Path, content: Content) -> Rows:
    """Return the rows of a file, which its suffix says how to read.

    Args:
        path: Ends in .csv, .jsonl or .txt, in any case.
        content: What is looked for, for hints.

    Raises:
        DataError: If it cannot be read, or not as what its suffix says.
    """
    suffix = path.suffix.lower()
    if suffix == LIST_SUFFIX:
        return _read_list(path)
    return _read_csv(path) if suffix == ".csv" else _read_jsonl(path, content)
