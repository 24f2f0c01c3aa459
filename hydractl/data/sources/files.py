"""Local .jsonl, .json, .csv, .tsv and .parquet files, and lists of images, as tables; nothing is written, not even a cache."""

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
    """Return the text of a file, without its byte order mark.

    Raises:
        DataError: If it cannot be read, or is no text of that encoding; the message says in which line.
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
            hint = None  # UTF-16 that can be read as UTF-8 is half of NUL bytes
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
"""First word of a line between documents."""
_DELIMITERS = (",", ";", "\t", "|")
_BEGINNING = 65536
"""Number of characters of a table in which its delimiter is searched."""
_QUOTES = 'end a quoted cell with a quote, and double each quote in it: `"say ""hi"""`'
_EXPANSION = 1000
"""Maximum size of the decoded cells of a file, as a multiple of its size. Texts and labels rarely shrink to a hundredth."""
_ROWS = 65536
"""Number of rows of a file that are decoded at a time, at most."""
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_TAG = re.compile(r"O|[BIESLUM]-\S+")


def open_table(ref: DataRef, content: Content, *, labelled: bool = True) -> DataTable:
    """Return the table in a file, in the format of its suffix.

    The delimiter of a .csv file is the character that separates the names of its columns; that of a .tsv file is a tab.

    Args:
        ref: Names the file.
        content: Images or texts.
        labelled: Whether labels are read. Without labels, a .txt file has one text per line.

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
    """The rows of a .jsonl, .json, .csv or .tsv file, or a list; images are files, by paths relative to a folder."""

    def __init__(self, rows: Rows, path: Path, folder: Path) -> None:
        super().__init__(list(rows[0]) if rows else [], where=str(path), name=path.name)
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
    # of the whole process: a limit that is put back would meet what another thread reads
    csv.field_size_limit(sys.maxsize)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    if excel := re.match(
        r"sep=(.)\r?\n", text
    ):  # Excel's way to name the delimiter; the blank line keeps the numbers of lines
        delimiter, text = excel[1], f"\n{text[excel.end() :]}"
    lines = _csv_lines(path, text, delimiter)
    line, head = next(lines, (1, []))
    named = [
        name for name in head if name.strip()
    ]  # spreadsheets write columns without a name behind the last one
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
            # files of tabs are often written without quoting, where a text that begins with a quote would swallow rows
            raise DataError(f"{path}: line {line}: a quoted cell contains tabs and line breaks", hint=_QUOTES)
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


def _read_json(path: Path, content: Content) -> Rows:
    """Return the objects of an array, or those that stand one a line."""
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
    """Return the value of a file, or of its line `line`."""
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
    """Return one row per line. Blank lines are texts, as on standard input.

    Raises:
        DataError: If every line has a word and a tag, as in files of the CoNLL tasks.
    """
    lines = [*io.StringIO(read_text(path), newline="\n")]
    tags = {line.split()[-1] for line in lines if line.strip() and not line.startswith(("#", _DOCUMENT))}
    if tags - {"O"} and all(map(_TAG.fullmatch, tags)):
        raise DataError(f"{path}: each line has a word and its tag", hint=_rename_hint(path))
    return [{"text": line.removesuffix("\n").removesuffix("\r")} for line in lines]


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
                f"{path}: line {number} is not a path and a label: `{line[:60]}`",
                hint=f"a .txt file lists one image per line: `cats/1.png 3`; {_rename_hint(path)}",
            )
        rows.append({"image": image, "label": int(label)})
    return rows


def _read_columns(path: Path) -> Rows:
    """Return a row a text of a file in the form of the CoNLL tasks: a word a line, its label last, a blank line behind each text.

    A line `# ...` before the first word of a text is a comment, unless it has as many columns as words do and a label of theirs.
    """
    rows: Rows = []
    # words may hold other white space, such as a blank at which no line breaks
    lines = [line.strip(" \r") for line in read_text(path).split("\n")]
    split = [line.split("\t") if "\t" in line else [*filter(None, line.split(" "))] for line in lines]
    words = [
        cells
        for line, cells in zip(lines, split, strict=True)
        if any(cells) and cells[0] != _DOCUMENT and not _is_hash(line)
    ]
    width = len(min(words, key=lambda cells: cells[0].startswith("#"), default=[]))
    labels = {"#", *(cells[-1] for cells in words)}  # the Penn Treebank's tag of `#` is `#`
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
    """Return whether a line begins with `#` alone, as comments do and hashtags do not."""
    return line.startswith(("# ", "#\t"))


def read_parquet(path: Path, ref: DataRef) -> ArrowTable:
    """Return the table in a .parquet file. Columns of types that `datasets` does not know are refused when they are read.

    Raises:
        DataError: If it is malformed, or no column can be read.
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
        # the library's own reader would leave a copy in its cache
        dataset = datasets.Dataset(datasets.table.InMemoryTable(known_columns))
    if unknown and not known_columns.column_names:
        types = ", ".join(f"`{name}` ({kind})" for name, kind in unknown.items())
        raise DataError(f"{path}: has no column of a supported type, only {types}")
    return ArrowTable(dataset, ref, where=str(path), unknown=unknown)


def _batches(file: Any, path: Path, limit: int) -> Iterator[Any]:  # noqa: ANN401 - of pyarrow, untyped
    """Yield the batches of a Parquet file, and refuse a file that decodes to too many bytes before memory holds all of them.

    A dictionary or a page is decoded as a whole and may have the size of its column chunk, so batches have few rows if chunks are large.

    Args:
        file: A `pyarrow.parquet.ParquetFile`.
        path: Its path.
        limit: Maximum size of a cell in bytes. All cells may have the size of a cell, or `_EXPANSION` times that of the file.
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
