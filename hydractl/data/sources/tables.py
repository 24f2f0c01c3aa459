"""Tables: rows of text files, data sets of `datasets` and of the Hub, and lists in their cells."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from typing_extensions import override

from hydractl import progress
from hydractl.data.decoding import FileSpan
from hydractl.data.reference import DataRef, SourceKind
from hydractl.errors import DataError, HubError, UnreadableError, reason_of
from hydractl.hub_client import asking, without_bars
from hydractl.messages import did_you_mean, quoted
from hydractl.strict_json import NotJSONError, parse

AS_IS = "none"
"""Value of `label-separator=` for names that contain a separator."""
NAMED_SEPARATORS = {"comma": ",", "space": None, "tab": "\t"}
"""Separators that a data reference names; `space` is any white space."""
_ITEM = re.compile(
    r"""(?:np\.\w+\()?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|True|False|[-+]?\d+\.?\d*)\)?(\s*,\s*|\s+|$)""",
    re.DOTALL,
)
LIST_FORM = re.compile(r"[\[({].*[,'\"].*[\])}]|\w+\(.*['\"].*\)", re.DOTALL)


def list_in(cell: object) -> list[Any] | None:
    """Return the list in a cell, None for other cells.

    Text forms: JSON; Python's lists, tuples and sets, as pandas writes them (`['a', 'b']`); numpy's arrays, which have no commas
    (`['a' 'b']`, `[0 1]`).
    """
    if isinstance(cell, str) and (text := cell.strip())[:1] + text[-1:] in {"[]", "()", "{}"}:
        with suppress(NotJSONError):
            return list_in(parse(text))
        items = [*_ITEM.finditer(body := text[1:-1].strip())]
        are_whole = "".join(part[0] for part in items) == body
        # Python joins neighbours without a comma: a mixture of both forms has two meanings
        if are_whole and len({"," in part[2] for part in items[:-1]}) <= 1:
            with suppress(SyntaxError, ValueError):
                return [ast.literal_eval(part[1]) for part in items]
    return cell if isinstance(cell, list) else None


def split_labels(cell: object, separator: str | None) -> object:
    """Return the labels of a cell as a list if there is a separator. Missing cells are empty lists."""
    if separator in {None, AS_IS} or list_in(cell) is not None:
        return cell
    text = "" if cell is None or cell != cell else str(cell)  # noqa: PLR0124 - NaN, which pandas writes for a missing cell
    return [
        part.strip() for part in text.split(NAMED_SEPARATORS.get(separator or "", separator)) if part.strip()
    ]


def separator_in(names: Iterable[str]) -> str | None:
    """Return the separator of labels in names such as `bad|long`, None if names are single labels.

    A label of a list has several places: `long` is in `bad|long` and alone. A part of one name has one place: `Korea, North`.
    """
    for separator in "|;,":
        places = {(part.strip(), i) for name in names for i, part in enumerate(name.split(separator))}
        if len({part for part, _ in places}) < len(places):
            return separator
    return None


Cell: TypeAlias = bytes | Path | FileSpan
Read: TypeAlias = Callable[[int], Cell]


class DataTable(ABC):
    """Rows under named columns.

    Attributes:
        columns: Their names.
        where: What messages call the table.
        name: What reports call it.
        label_separator: Value of `label-separator=` of the data reference.
    """

    label_separator: str | None = None

    def __init__(self, columns: Sequence[str], *, where: str, name: str) -> None:
        self.columns = columns
        self.where = where
        self.name = name

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows there are."""

    @abstractmethod
    def cells(self, column: str, *, most: int | None = None) -> Sequence[object]:
        """Return a column, or its first `most` cells."""

    def label_cells(self, column: str) -> Sequence[object]:
        """Return a column of labels. Cells with several labels are lists if there is a separator."""
        return [split_labels(cell, self.label_separator) for cell in self.cells(column)]

    @abstractmethod
    def images(self, column: str) -> Read:
        """Return what reads a row's encoded image by its number, or says where it lies; safe to call from several threads.

        Raises:
            DataError: If the column holds no images, or names one that is missing.
        """

    def classes(self, column: str) -> Sequence[str] | None:  # noqa: ARG002 - most tables declare none
        """Return the class names that the table declares for a column of labels, if any."""
        return None

    def place(self, column: str | None) -> str:
        """Return what messages call a column."""
        return f"{self.where}: column `{column}`"


class ArrowTable(DataTable):
    """A `datasets.Dataset`; an image column is an Image feature, encoded bytes, or (local files) paths."""

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - the library is untyped
        ref: DataRef,
        *,
        where: str,
        unknown: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Wrap a data set.

        Args:
            dataset: The columns whose types `datasets` knows.
            ref: Data reference of the data set.
            where: Name in messages.
            unknown: The types of all other columns, by name. A column of an unknown type is refused when it is read.
        """
        if any("." in name and name not in dataset.column_names for name in ref.text_columns):
            dataset = dataset.flatten()  # a column within a column is named `OUTER.INNER`
        name = where if ref.repo_id else Path(ref.source).resolve().name
        super().__init__([*dataset.column_names, *unknown], where=where, name=name)
        self._dataset, self._unknown = dataset, unknown
        self._folder = folder_of(ref) if ref.kind is SourceKind.FILE else None

    @override
    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, column: str) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
        """Return the rows of a column alone."""
        if column in self._unknown:
            raise DataError(
                f"{self.place(column)}: has the unsupported type `{self._unknown[column]}`",
                hint="select another column, or convert it to strings or numbers",
            )
        return self._dataset.select_columns([column])

    @override
    def cells(self, column: str, *, most: int | None = None) -> Sequence[object]:
        # as stored: the library would decode images, with any of Pillow's readers
        return cast(
            "Sequence[object]", self.rows(column).with_format("arrow")[:most].column(column).to_pylist()
        )

    @override
    def classes(self, column: str) -> Sequence[str] | None:
        import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

        feature = self.rows(column).features[column]
        feature = getattr(feature, "feature", feature)  # of a list of labels, that of one
        return feature.names if isinstance(feature, datasets.ClassLabel) else None

    @override
    def images(self, column: str) -> Read:
        import datasets  # noqa: PLC0415 - as above

        rows, where = self.rows(column), self.place(column)
        kind = rows.features[column]
        storage = kind.dtype if isinstance(kind, datasets.Value) else ""
        if isinstance(kind, datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
        elif storage in {"string", "large_string"} and self._folder is not None:
            return ImageFiles(rows[column][:], self._folder, where)
        elif storage not in {"binary", "large_binary"} and not (isinstance(kind, dict) and "bytes" in kind):
            raise DataError(
                f"{where}: has no images", hint="select the column with the images: `::image=COLUMN`"
            )

        def read(index: int) -> bytes | Path:
            cell = rows[index][column]
            if isinstance(cell, dict):
                path = cell.get("path")
                cell = Path(path) if cell["bytes"] is None and path else cell["bytes"]
            if not isinstance(cell, bytes | Path):
                raise DataError(f"{where}: row {index} has no image")
            return cell

        return read


def folder_of(ref: DataRef) -> Path:
    """Return where the paths of a table start from."""
    return Path(ref.source).parent if ref.root is None else Path(ref.root)


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The image files that a column names, by paths from a folder."""

    cells: Sequence[object]
    folder: Path
    where: str

    def __call__(self, row: int) -> Path:
        """Return a row's file.

        Raises:
            DataError: If it names none, or one that is not there.
        """
        cell = self.cells[row]
        if not isinstance(cell, str) or not cell:
            raise DataError(f"{self.where}: row {row} has no image path: {cell!r:.80}")
        file = self.folder / cell
        if not os.path.isfile(file):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
            raise UnreadableError(
                f"{self.where}: row {row} has the path `{cell}`, which does not exist",
                hint=f"paths are relative to `{self.folder}`",
            )
        return file


def fetch_table(ref: DataRef) -> ArrowTable:
    """Return one split of a Hub data set.

    Raises:
        HubError: If the data set cannot be reached: no network, offline, unknown, private.
        DataError: If the configuration or split is unknown or has to be chosen.
    """
    progress.step(f"Reading {ref.source}")
    with _translated(ref), quiet(), asking(ref.source):
        return ArrowTable(_load(ref), ref, where=ref.source)


def _load(ref: DataRef) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    if ref.revision is not None and datasets.config.HF_HUB_OFFLINE:
        progress.warn(f"{ref.source}: HF_HUB_OFFLINE is set, so the cached copy may be of another revision")
    # a bare name would read a local folder of that name instead
    address = f"hf://datasets/{ref.repo_id}"
    try:
        split = ref.split
        if split is None or split.isidentifier():  # the rest are slices such as `train[:10%]`
            splits = datasets.get_dataset_split_names(address, ref.config, revision=ref.revision)
            split = choose(ref, "split", split, splits)
        return datasets.load_dataset(address, ref.config, split=split, revision=ref.revision)
    except ValueError:
        if not datasets.config.HF_HUB_OFFLINE:  # the cache does not tell the names
            choose(
                ref, "config", ref.config, datasets.get_dataset_config_names(address, revision=ref.revision)
            )
        raise


def choose(ref: DataRef, key: str, name: str | None, present: Sequence[str]) -> str:
    """Return `name` if it is there, or the only one there is.

    Raises:
        DataError: If it is not there, or has to be chosen.
    """
    if name is None and len(present) != 1:
        raise DataError(
            f"{ref.source}: has several {key}s: {quoted(present)}", hint=f"choose one with `::{key}=NAME`"
        )
    if name is not None and name not in present:
        raise DataError(
            f"{ref.source}: has no {key} `{name}`; it has {quoted(present)}", hint=did_you_mean(name, present)
        )
    return name or present[0]


@contextlib.contextmanager
def _translated(ref: DataRef) -> Iterator[None]:
    """Turn the library's errors into ours."""
    import datasets  # noqa: PLC0415 - as above
    from datasets.exceptions import DatasetNotFoundError, DatasetsError  # noqa: PLC0415 - as above
    from httpx2 import HTTPError  # noqa: PLC0415 - what huggingface_hub's transport raises; as above
    from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415 - as above

    try:
        yield
    except DatasetNotFoundError as error:
        raise HubError(
            f"{ref.source}: does not exist on the Hub, or is private",
            hint="check the name; for a private or gated data set run `hf auth login`",
        ) from error
    except DatasetsError as error:
        raise DataError(f"{ref.source}: cannot be read: {reason_of(error)}") from error
    except (ConnectionError, TimeoutError, FileNotFoundError, HTTPError, EntryNotFoundError) as error:
        offline = datasets.config.HF_HUB_OFFLINE
        raise HubError(
            f"{ref.source}: cannot be reached: {reason_of(error)}",
            hint="it is not in the cache; unset HF_HUB_OFFLINE" if offline else "check the network",
        ) from error
    # slices that do not parse are ValueErrors, data sets that need their own code RuntimeErrors, full disks OSErrors
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{ref.source}: cannot be read: {reason_of(error)}") from error


@contextlib.contextmanager
def readable(path: Path, format_name: str, *, hint: str | None = None) -> Iterator[None]:
    """Refuse what the libraries cannot read as a format.

    Raises:
        DataError: Saying why.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    try:
        yield
    # the latter are what malformed files of the library's own, and its notes in the metadata of others, end in
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as {format_name}: {reason_of(error)}", hint=hint) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let the library draw no bars and ask the Hub alone, no counter of downloads elsewhere and no `datasets-server.HOST`.

    That is the Hub's own for huggingface.co alone; of another endpoint nobody knows who has such a name, and it gets the token.
    """
    import datasets  # noqa: PLC0415 - as above
    from huggingface_hub import constants, utils  # noqa: PLC0415 - as above

    config = datasets.config
    before = config.HF_UPDATE_DOWNLOAD_COUNTS, config.USE_PARQUET_EXPORT
    config.HF_UPDATE_DOWNLOAD_COUNTS = False
    config.USE_PARQUET_EXPORT = before[1] and constants.ENDPOINT == "https://huggingface.co"
    try:
        with without_bars(datasets, utils):
            yield
    finally:
        config.HF_UPDATE_DOWNLOAD_COUNTS, config.USE_PARQUET_EXPORT = before
