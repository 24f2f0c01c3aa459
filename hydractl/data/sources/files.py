"""Tables in local .jsonl, .json, .csv, .tsv, .parquet and .conll files, and lists of images.

Nothing is written, not even a cache.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from typing_extensions import override

from hydractl.data.datasets import Content
from hydractl.data.decoding import read_bytes
from hydractl.data.reference import COLUMN_SUFFIXES, LIST_SUFFIX, MAX_ITEM, DataRef
from hydractl.data.sources.tables import ArrowTable, DataTable, ImageFiles, Read, folder_of, readable
from hydractl.errors import DataError
from hydractl.strict_json import NotJSONError, parse

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_text(path: Path) -> str:
    """Return the text of a file, decoded by its byte order mark or as UTF-8.

    Raises:
        DataError: If the file cannot be read, or is not text of this encoding. The message names the line.
    """
    data = read_bytes(path)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    hint = None
    if encoding == "utf-8":
        nul = data.find(b"\0")
        probable = "WINDOWS-1252" if nul < 0 else "UTF-16LE" if nul % 2 else "UTF-16BE"
        hint = f"convert it: `iconv -f {probable} -t UTF-8 {shlex.quote(str(path))}`, or save it as UTF-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        name = encoding.removesuffix("-sig").upper()
        raise DataError(
            f"{path}: line {line} is not {name} text: {error.reason} at byte {error.start}", hint=hint
        ) from error
    if "\0" in text:
        line = 1 + text.count("\n", 0, text.index("\0"))
        if 4 * text.count("\0") < len(text):
            hint = None  # UTF-16 text that decodes as UTF-8 has NUL as every second character
        raise DataError(f"{path}: line {line} contains a NUL character", hint=hint)
    return text


Rows = list[dict[str, object]]
_EXAMPLES: Mapping[Content, str] = MappingProxyType(
    {
        Content.IMAGES: '{"image": "a.png", "label": "cat"}',
        Content.TEXTS: '{"text": "a good film", "label": "good"}',
    }
)
_FORM = "a table must be an array of objects, or have one object per line, for example {}"
TOKENS, TAGS = "tokens", "tags"
_DOCUMENT = "-DOCSTART-"
"""First word of lines that separate documents in CoNLL files."""
_DELIMITERS = (",", ";", "\t", "|")
_BEGINNING = 65536
"""Number of characters in which the delimiter of a table is detected. Chosen by hand to contain two rows;
doubling it only helps tables with longer rows."""
_QUOTES = 'end a quoted cell with a quote, and double each quote in it: `"say ""hi"""`'
_EXPANSION = 1000
"""Maximum size of all decoded cells of a file, as a multiple of the file size. Texts and labels rarely
compress below a hundredth. Chosen by hand; doubling it doubles the memory that a malicious file can
allocate."""
_ROWS = 65536
"""Maximum number of rows decoded at a time. Chosen by hand; doubling it doubles the memory that is used
before sizes are checked."""
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_TAG = re.compile(r"O|[BIESLUM]-\S+")


def open_table(ref: DataRef, content: Content, *, labelled: bool = True) -> DataTable:
    """Read the table in a file in the format of its suffix.

    The delimiter of a .csv file is the character that separates its column names. The delimiter of a .tsv
    file is a tab.

    Args:
        ref: Data reference of the file.
        content: Expected type of the items.
        labelled: Whether to read labels. Without labels, a .txt file of texts has one text per line. Other
            .txt files have a path and a class number per line.

    Raises:
        DataError: If the file is missing or malformed.
    """
    path = Path(ref.source)
    if path.is_dir():
        raise DataError(
            f"{path}: is a folder, not a file", hint=f"write `{path}/` to read it as a folder of {content}"
        )
    ref.check_there()
    if path.suffix.lower() == ".parquet":
        return read_parquet(path, ref)
    suffix = path.suffix.lower()
    if suffix == LIST_SUFFIX:
        rows = _text_lines(path) if content is Content.TEXTS and not labelled else _read_list(path)
    elif suffix in COLUMN_SUFFIXES:
        rows = _read_columns(path)
    else:
        rows = _read_csv(path) if suffix in {".csv", ".tsv"} else _read_json(path, content)
    return RowTable(rows, path, folder_of(ref))


class RowTable(DataTable):
    """Table of rows in memory. Images are files, with paths relative to a folder."""

    def __init__(self, rows: Rows, path: Path, folder: Path) -> None:
        super().__init__(list(rows[0]) if rows else [], place=str(path), name=path.name)
        self._rows = rows
        self._folder = folder

    @override
    def __len__(self) -> int:
        return len(self._rows)

    @override
    def cells(self, column: str, *, most: int | None = None) -> list[object]:
        return [row[column] for row in self._rows[:most]]

    @override
    def images(self, column: str) -> Read:
        return ImageFiles(self.cells(column), self._folder, self.place(column))


def _read_csv(path: Path) -> Rows:
    text = read_text(path)
    # the limit applies to the whole process: restoring the old limit would affect other threads
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    if excel := re.match(
        r"sep=(.)\r?\n", text
    ):  # Excel writes `sep=;` into the first line; the empty line keeps line numbers in messages correct
        delimiter, text = excel[1], f"\n{text[excel.end() :]}"
    lines = _csv_lines(path, text, delimiter)
    line, head = next(lines, (1, []))
    named = [name for name in head if name.strip()]  # spreadsheets write unnamed columns after the last
    if len(set(named)) != len(named):
        raise DataError(f"{path}: line {line}: two columns have the same name: {', '.join(head)}")
    rows: Rows = []
    for line, cells in lines:
        if len(cells) != len(head):
            raise DataError(
                f"{path}: line {line} has {len(cells)} cells under {len(head)} columns",
                hint=f'put a cell that contains {f"`{delimiter}`" if delimiter.strip() else "a tab"} in quotes: `"..."`',
            )
        if delimiter == "\t" and any("\t" in cell and "\n" in cell for cell in cells):
            # files with tabs are often written without quoting, where a text that starts with a quote would
            # swallow the next rows
            raise DataError(f"{path}: line {line}: a quoted cell contains tabs and line breaks", hint=_QUOTES)
        rows.append(dict(zip(head, cells, strict=True)))
    return rows


def _csv_lines(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number at which each row starts (from 1), and its cells. Empty lines are skipped.

    Raises:
        DataError: If a line is malformed.
    """
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
    """Return the delimiter with the largest number of column names, or a comma if equal.

    Delimiters that split the first row into equally many cells come first, because column names may contain
    delimiters.
    """

    def fit(delimiter: str) -> tuple[bool, int]:
        rows = csv.reader(io.StringIO(text[:_BEGINNING], newline=""), delimiter=delimiter)
        head, *row = [*islice(filter(None, rows), 2)] or [[]]
        return len(head) > 1 and [*map(len, row)] == [len(head)], len(head)

    return max(_DELIMITERS, key=fit)


def _read_json(path: Path, content: Content) -> Rows:
    """Return the objects of a JSON array, or of JSON lines.

    Raises:
        DataError: If a row is not an object, or has other keys than the first row.
    """
    text = read_text(path)
    rows: Rows = []
    if text.lstrip().startswith("["):
        array = enumerate(_parsed(path, text, content))
        placed_rows = ((f"row {number} of the array", row) for number, row in array)
    else:
        lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
        placed_rows = ((f"line {n}", _parsed(path, line, content, line=n)) for n, line in lines)
    for place, row in placed_rows:
        if not isinstance(row, dict):
            raise DataError(f"{path}: {place} is not a JSON object")
        if rows and row.keys() != rows[0].keys():
            odd = min(row.keys() ^ rows[0].keys())
            raise DataError(f"{path}: {place} and the first row differ in the key `{odd}`")
        rows.append(row)
    return rows


def _parsed(path: Path, text: str, content: Content, *, line: int = 0) -> Any:  # noqa: ANN401 - JSON may be anything
    """Parse the JSON of a file, or of its line `line`."""
    try:
        return parse(text)
    except NotJSONError as error:
        place = f"line {line or error.line} " if line or error.line else ""
        column = f" at column {error.column}" if error.column else ""
        raise DataError(
            f"{path}: {place}is not JSON: {error.words}{column}", hint=_FORM.format(_EXAMPLES[content])
        ) from error


def _rename_hint(path: Path) -> str:
    conll = path.with_suffix(COLUMN_SUFFIXES[0])
    return f"rename a file with a word and its label per line: `mv {shlex.quote(str(path))} {shlex.quote(str(conll))}`"


def _text_lines(path: Path) -> Rows:
    """Return one row per line. Empty lines are texts, like on standard input.

    Raises:
        DataError: If every line has a word and a tag, like files of the CoNLL tasks.
    """
    lines = [*io.StringIO(read_text(path), newline="\n")]
    tags = {line.split()[-1] for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT))}
    if tags - {"O"} and all(map(_TAG.fullmatch, tags)):
        raise DataError(f"{path}: each line has a word and its tag", hint=_rename_hint(path))
    return [{"text": line.removesuffix("\n").removesuffix("\r")} for line in lines]


def _read_list(path: Path) -> Rows:
    """Return one row per line with a path, white space and an integer label. Labels below 0 mean unlabelled.

    Raises:
        DataError: If a line has another form.
    """
    rows: Rows = []
    for number, name in enumerate(read_bytes(path).removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        line = os.fsdecode(name).strip()  # paths need not be UTF-8
        image, label = [*line.rsplit(maxsplit=1), "", ""][:2]
        if not line:
            continue
        if not image or not _INTEGER.fullmatch(label):
            raise DataError(
                f"{path}: line {number} is not a path and a label: `{line[:60]}`",
                hint=f"a .txt file lists one image per line: `cats/1.png 3`; {_rename_hint(path)}",
            )
        rows.append({"image": image, "label": int(label)})
    return rows


def _read_columns(path: Path) -> Rows:
    """Return one row per text of a CoNLL file.

    A line has a word first and its label last. An empty line follows each text. A line `# ...` before the
    first word of a text is a comment, unless it has the same number of columns as words and a label used
    elsewhere.

    Raises:
        DataError: If a line has another number of columns than the first word.
    """
    rows: Rows = []
    # words may contain other white space, for example a no-break space, so only spaces and tabs separate
    # columns
    lines = [line.strip(" \r") for line in read_text(path).split("\n")]
    split = [line.split("\t") if "\t" in line else [*filter(None, line.split(" "))] for line in lines]
    words = [
        cells
        for line, cells in zip(lines, split, strict=True)
        if any(cells) and cells[0] != _DOCUMENT and not _is_hash(line)
    ]
    width = len(min(words, key=lambda cells: cells[0].startswith("#"), default=[]))
    labels = {"#", *(cells[-1] for cells in words)}  # the tag of the word `#` in the Penn Treebank is `#`
    names = [TOKENS, *(f"column {i}" for i in range(2, width)), TAGS][:width]
    is_first = True
    for number, (line, cells) in enumerate(zip(lines, split, strict=True), start=1):
        is_comment = len(cells) != width or (_is_hash(line) and cells[-1] not in labels)
        if not any(cells) or cells[0] == _DOCUMENT:
            is_first = True
        elif not (is_first and line.startswith("#") and is_comment):
            if len(cells) != len(names) or not all(cells):
                raise DataError(
                    f"{path}: line {number} has {len(cells)} columns, but the first word has {width}",
                    hint="a line has a word, then its labels, parted by blanks or tabs: `Rome B-place`; a comment `# ...` comes "
                    "before the first word of a text",
                )
            if is_first:
                rows.append({name: list[str]() for name in names})
            for name, cell in zip(names, cells, strict=True):
                cast("list[str]", rows[-1][name]).append(cell)
            is_first = False
    return rows


def _is_hash(line: str) -> bool:
    """Return whether a line starts with a separate `#`, like a comment and unlike a hashtag."""
    return line.startswith(("# ", "#\t"))


def read_parquet(path: Path, ref: DataRef) -> ArrowTable:
    """Read the table of a .parquet file. `max-item=` of the reference limits the size of cells.

    Columns of types that `datasets` does not support raise later, when cells are read.

    Raises:
        DataError: If the file is malformed or too large, or has only columns of unsupported types.
    """
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    def is_known(column: Any) -> bool:  # noqa: ANN401 - a `pyarrow.Field`, untyped
        try:
            datasets.Features.from_arrow_schema(pa.schema([column]))
        except (ValueError, NotImplementedError):
            return False
        return True

    with readable(path, "Parquet"):
        with pq.ParquetFile(path) as file:
            batches = [*_batches(file, path, ref.max_item or MAX_ITEM)]
            table = pa.Table.from_batches(batches, file.schema_arrow)
        unknown = {column.name: str(column.type) for column in table.schema if not is_known(column)}
        known_columns = table.select([name for name in table.column_names if name not in unknown])
        # the reader of `datasets` would leave a copy in its cache
        dataset = datasets.Dataset(datasets.table.InMemoryTable(known_columns))
    if unknown and not known_columns.column_names:
        types = ", ".join(f"`{name}` ({kind})" for name, kind in unknown.items())
        raise DataError(f"{path}: has no column of a supported type, only {types}")
    return ArrowTable(dataset, ref, place=str(path), unknown=unknown)


def _batches(file: Any, path: Path, limit: int) -> Iterator[Any]:  # noqa: ANN401 - of pyarrow, untyped
    """Yield the batches of a Parquet file, with a check of their size before the next batch is decoded.

    A dictionary or page is decoded as a whole and may have the size of its column chunk, so batches have few
    rows if chunks are large.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        path: Path of the file.
        limit: Maximum size of a cell in bytes. All cells together may have this size, or `_EXPANSION` times
            the size of the file if larger.

    Raises:
        DataError: If the file exceeds the limits.
    """
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    chunks = [g.column(i).total_uncompressed_size for g in groups for i in range(g.num_columns)]
    most, size = max(limit, _EXPANSION * path.stat().st_size), sum(chunks)
    if size <= most:
        size = 0
        for batch in file.iter_batches(max(1, min(_ROWS, most // max(chunks, default=1)))):
            size += batch.nbytes
            large = [column for column in batch.columns if column.nbytes > limit]
            largest = max(
                (column.slice(i, 1).nbytes for column in large for i in range(len(column))), default=0
            )
            if size > most or largest > limit:
                break
            yield batch
        else:
            return
    raise DataError(
        f"{path}: the file of {path.stat().st_size} bytes has a cell of more than {limit} bytes, or {most} bytes in all cells",
        hint=f"if you trust the file, add `::max-item={16 * max(size, most)}`",
    )
