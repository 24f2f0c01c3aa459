"""Local tables of images or texts: .jsonl, .csv and .parquet files. Nothing is written, not even a cache."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydractl.data.items import Content
from hydractl.data.listed import (
    LABEL_COLUMNS,
    UNLABELLED,
    Labels,
    TableSet,
    find_column,
    image_column,
    read_labels,
)
from hydractl.data.reference import SOURCES_HINT, SourceKind
from hydractl.data.texts import Table, texts_of_table
from hydractl.errors import DataError
from hydractl.jsonfile import NotJSONError, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hydractl.data.reference import DataRef
    from hydractl.data.texts import TextSet
    from hydractl.progress import Progress

    Rows = list[dict[str, object]]


def open_file(ref: DataRef, progress: Progress) -> TableSet:
    """Return the images that a file lists, by paths relative to the file's folder, or holds.

    Raises:
        DataError: If the file is missing, malformed or empty, lacks a column, or names an image that is missing.
    """
    path = _existing(ref, Content.IMAGES)
    if path.suffix.lower() == ".parquet":
        return open_arrow(_read_parquet(path), ref, where=str(path), progress=progress)
    rows = _read_rows(path)
    columns = list(rows[0])
    image = image_column(columns, wanted=ref.image, where=str(path))
    label = find_column(columns, wanted=ref.label, usual=LABEL_COLUMNS, role="label", where=str(path))
    files = _image_files([row[image] for row in rows], folder=path.parent, where=f"{path}: column `{image}`")
    found = _labels(
        [row[label] for row in rows] if label else None,
        names=None,
        where=f"{path}: column `{label}`",
        progress=progress,
    )
    return TableSet(
        count=len(rows),
        read=files.__getitem__,
        where=str(path),
        name=path.name,
        **found._asdict(),
    )


def open_text_file(ref: DataRef, progress: Progress) -> TextSet:
    """Return the texts that a file holds.

    Raises:
        DataError: If the file is missing, malformed or empty, lacks a column, or a cell is no text.
    """
    path = _existing(ref, Content.TEXTS)
    if path.suffix.lower() == ".parquet":
        return open_text_arrow(_read_parquet(path), ref, where=str(path), progress=progress)
    rows = _read_rows(path)
    table = Table(
        columns=list(rows[0]),
        read=lambda column: [row[column] for row in rows],
        classes=lambda _: None,
        where=str(path),
        name=path.name,
    )
    return texts_of_table(table, ref, progress)


def open_text_arrow(
    # the library is untyped
    dataset: Any,  # noqa: ANN401
    ref: DataRef,
    *,
    where: str,
    progress: Progress,
) -> TextSet:
    """Return the texts of a `datasets.Dataset`; a column within a column is named `OUTER.INNER`.

    Args:
        dataset: The rows.
        ref: Names the columns.
        where: What messages call the data.
        progress: Hears warnings.

    Raises:
        DataError: If there is no row, a column is missing or holds something else.
    """
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    if len(dataset) == 0:
        raise DataError(f"{where}: holds no row")
    if any("." in name and name not in dataset.column_names for name in ref.text_columns):
        dataset = dataset.flatten()

    def classes(column: str) -> Sequence[str] | None:
        feature = dataset.features[column]
        return feature.names if isinstance(feature, datasets.ClassLabel) else None

    table = Table(
        columns=dataset.column_names,
        read=lambda column: dataset[column][:],
        classes=classes,
        where=where,
        name=where if ref.repo_id else Path(ref.source).name,
    )
    return texts_of_table(table, ref, progress)


def open_arrow(
    # the library is untyped
    dataset: Any,  # noqa: ANN401
    ref: DataRef,
    *,
    where: str,
    progress: Progress,
) -> TableSet:
    """Return the images of a `datasets.Dataset`.

    Args:
        dataset: The rows; the image column is an Image feature, encoded bytes, or (local files) paths.
        ref: Names the columns.
        where: What messages call the data.
        progress: Hears warnings.

    Raises:
        DataError: If there is no row, a column is missing or holds something else.
    """
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    if len(dataset) == 0:
        raise DataError(f"{where}: holds no row")
    columns: list[str] = dataset.column_names
    image = image_column(columns, wanted=ref.image, where=where)
    label = find_column(columns, wanted=ref.label, usual=LABEL_COLUMNS, role="label", where=where)
    feature = dataset.features[label] if label else None
    found = _labels(
        dataset[label][:] if label else None,
        names=feature.names if isinstance(feature, datasets.ClassLabel) else None,
        where=f"{where}: column `{label}`",
        progress=progress,
    )
    rows = dataset.select_columns([image])
    place = f"{where}: column `{image}`"
    read: Callable[[int], bytes | Path]
    kind = rows.features[image]
    storage = getattr(kind, "dtype", "")
    if isinstance(kind, datasets.Image):
        read = _ImageCells(rows.cast_column(image, datasets.Image(decode=False)), image, place)
    elif storage in {"binary", "large_binary"} or (isinstance(kind, dict) and "bytes" in kind):
        read = _ImageCells(rows, image, place)
    elif storage in {"string", "large_string"} and ref.kind is SourceKind.FILE:
        read = _image_files(rows[image][:], folder=Path(ref.source).parent, where=place).__getitem__
    else:
        raise DataError(f"{place}: holds no images", hint="name the column with the images: `::image=COLUMN`")
    name = where if ref.repo_id else Path(ref.source).name
    return TableSet(count=len(rows), read=read, where=where, name=name, **found._asdict())


class _ImageCells:
    """Reads one row's encoded image out of a `datasets.Dataset`."""

    def __init__(self, rows: Any, column: str, where: str) -> None:  # noqa: ANN401 - the library is untyped
        self._rows = rows
        self._column = column
        self._where = where

    def __call__(self, index: int) -> bytes | Path:
        cell = self._rows[index][self._column]
        if isinstance(cell, dict):
            path = cell.get("path")
            cell = Path(path) if cell["bytes"] is None and path else cell["bytes"]
        if not isinstance(cell, bytes | Path):
            raise DataError(f"{self._where}: row {index} has no image")
        return cell


def _existing(ref: DataRef, content: Content) -> Path:
    path = Path(ref.source)
    if path.is_dir():
        raise DataError(
            f"{path}: is a folder, not a file", hint=f"write `{path}/` to read it as a folder of {content}"
        )
    if not path.exists():
        raise DataError(f"{path}: no such file", hint=SOURCES_HINT)
    return path


def _labels(
    values: Sequence[object] | None, *, names: Sequence[str] | None, where: str, progress: Progress
) -> Labels:
    return UNLABELLED if values is None else read_labels(values, names=names, where=where, progress=progress)


def _image_files(cells: Sequence[object], *, folder: Path, where: str) -> list[Path]:
    """Return each row's file, all of them there."""
    files = []
    for row, cell in enumerate(cells):
        if not isinstance(cell, str) or not cell:
            raise DataError(f"{where}: row {row} names no image file: {cell!r}")
        file = folder / cell
        if not file.is_file():
            raise DataError(
                f"{where}: row {row} names `{cell}`, which is not there", hint=f"paths start from `{folder}`"
            )
        files.append(file)
    return files


def _read_rows(path: Path) -> Rows:
    rows = _read_csv(path) if path.suffix.lower() == ".csv" else _read_jsonl(path)
    if not rows:
        raise DataError(f"{path}: holds no row")
    return rows


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


def _read_jsonl(path: Path) -> Rows:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    rows: Rows = []
    for number, line in enumerate(lines, start=1):
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
                else 'each line is an object of its own, for example {"image": "a.png", "label": "cat"}',
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is not a JSON object")
        if rows and row.keys() != rows[0].keys():
            odd = sorted(row.keys() ^ rows[0].keys())
            raise DataError(f"{path}: line {number} and the first row differ in the key `{odd[0]}`")
        rows.append(row)
    return rows


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    hint = f"convert it: `iconv -f WINDOWS-1252 -t UTF-8 {path}`, or save it anew as UTF-8"
    return DataError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}", hint=hint)


def _read_parquet(path: Path) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
    import datasets  # noqa: PLC0415 - as above
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    # the library's own reader would leave a copy in its cache
    return datasets.Dataset(datasets.table.InMemoryTable(table))
