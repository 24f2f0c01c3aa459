"""Tables: the common interface, data sets of the library `datasets` and of the Hub, and lists in cells."""

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
from hydractl.hub_client import limited_client, without_bars
from hydractl.messages import did_you_mean, quoted
from hydractl.strict_json import NotJSONError, parse

AS_IS = "none"
"""Value of `label-separator=` for names that contain a separator."""
NAMED_SEPARATORS = {"comma": ",", "space": None, "tab": "\t"}
"""Separators with a name in data references. None splits at any white space."""
_ITEM = re.compile(
    r"""(?:np\.\w+\()?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|True|False|[-+]?\d+\.?\d*)\)?(\s*,\s*|\s+|$)""",
    re.DOTALL,
)
LIST_FORM = re.compile(r"[\[({].*[,'\"].*[\])}]|\w+\(.*['\"].*\)", re.DOTALL)


def list_in(cell: object) -> list[Any] | None:
    """Parse the list in a cell. Returns None for other cells.

    Strings may contain JSON; lists, tuples and sets of Python, as written by pandas (`['a', 'b']`); or arrays
    of numpy, which have no commas (`['a' 'b']`, `[0 1]`).
    """
    if isinstance(cell, str) and (text := cell.strip())[:1] + text[-1:] in {"[]", "()", "{}"}:
        with suppress(NotJSONError):
            return list_in(parse(text))
        items = [*_ITEM.finditer(body := text[1:-1].strip())]
        are_whole = "".join(part[0] for part in items) == body
        # a mixture of commas and spaces is ambiguous, because Python joins neighbouring strings
        if are_whole and len({"," in part[2] for part in items[:-1]}) <= 1:
            with suppress(SyntaxError, ValueError):
                return [ast.literal_eval(part[1]) for part in items]
    return cell if isinstance(cell, list) else None


def split_labels(cell: object, separator: str | None) -> object:
    """Split the labels of a cell into a list, if there is a separator. A missing cell gives an empty list.

    Args:
        cell: The cell. Lists are returned unchanged.
        separator: Value of `label-separator=`. None and `none` do not split.
    """
    if separator in {None, AS_IS} or list_in(cell) is not None:
        return cell
    text = "" if cell is None or cell != cell else str(cell)  # noqa: PLR0124 - NaN, which pandas writes for a missing cell
    return [
        part.strip() for part in text.split(NAMED_SEPARATORS.get(separator or "", separator)) if part.strip()
    ]


def separator_in(names: Iterable[str]) -> str | None:
    """Return the separator of labels in names like `bad|long`. None if names are single labels.

    In lists a label occurs at several positions: `long` is in `bad|long` and alone. In a single name like
    `Korea, North`, each part has one position.
    """
    for separator in "|;,":
        places = {(part.strip(), i) for name in names for i, part in enumerate(name.split(separator))}
        if len({part for part, _ in places}) < len(places):
            return separator
    return None


Cell: TypeAlias = bytes | Path | FileSpan
Read: TypeAlias = Callable[[int], Cell]


class DataTable(ABC):
    """Table of rows under named columns.

    Attributes:
        columns: Names of the columns.
        display_name: Name of the table in messages.
        name: Name of the table in reports.
        label_separator: Value of `label-separator=` in the data reference.
    """

    label_separator: str | None = None

    def __init__(self, columns: Sequence[str], *, place: str, name: str) -> None:
        self.columns = columns
        self.display_name = place
        self.name = name

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def cells(self, column: str, *, most: int | None = None) -> Sequence[object]:
        """Return the cells of a column, or only its first `most` cells."""

    def label_cells(self, column: str) -> Sequence[object]:
        """Return the cells of a column of labels. With a separator, each cell is a list."""
        return [split_labels(cell, self.label_separator) for cell in self.cells(column)]

    @abstractmethod
    def images(self, column: str) -> Read:
        """Return a function from row numbers to encoded images, or to the files of images.

        The function is safe to call from several threads.

        Raises:
            DataError: If the column holds no images.
        """

    def classes(self, column: str) -> Sequence[str] | None:  # noqa: ARG002 - most tables declare none
        """Return the class names that the table declares for a column. None without declared names."""
        return None

    def place(self, column: str | None) -> str:
        """Return the name of a column in messages."""
        return f"{self.display_name}: column `{column}`"


class ArrowTable(DataTable):
    """Table of a `datasets.Dataset`. Images are Image features, encoded bytes, or paths in local files."""

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401 - the library is untyped
        ref: DataRef,
        *,
        place: str,
        unknown: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Wrap a data set.

        Args:
            dataset: Columns of types that `datasets` supports.
            ref: Data reference of the data set.
            place: Name in messages.
            unknown: Type of each other column, by name. Reading an unsupported column raises.
        """
        if any("." in name and name not in dataset.column_names for name in ref.text_columns):
            dataset = dataset.flatten()  # `flatten` names a column within a column `OUTER.INNER`
        name = place if ref.repo_id else Path(ref.source).resolve().name
        super().__init__([*dataset.column_names, *unknown], place=place, name=name)
        self._dataset, self._unknown = dataset, unknown
        self._folder = folder_of(ref) if ref.kind is SourceKind.FILE else None

    @override
    def __len__(self) -> int:
        return len(self._dataset)

    def rows(self, column: str) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
        """Return a data set with a single column.

        Raises:
            DataError: If the column has an unsupported type.
        """
        if column in self._unknown:
            raise DataError(
                f"{self.place(column)}: has the unsupported type `{self._unknown[column]}`",
                hint="select another column, or convert it to strings or numbers",
            )
        return self._dataset.select_columns([column])

    @override
    def cells(self, column: str, *, most: int | None = None) -> Sequence[object]:
        # the arrow format returns stored values: by default the library decodes images with all readers of
        # Pillow
        return cast(
            "Sequence[object]", self.rows(column).with_format("arrow")[:most].column(column).to_pylist()
        )

    @override
    def classes(self, column: str) -> Sequence[str] | None:
        import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

        feature = self.rows(column).features[column]
        feature = getattr(feature, "feature", feature)  # a list of labels has the feature of its elements
        return feature.names if isinstance(feature, datasets.ClassLabel) else None

    @override
    def images(self, column: str) -> Read:
        import datasets  # noqa: PLC0415 - as above

        rows, place = self.rows(column), self.place(column)
        kind = rows.features[column]
        storage = kind.dtype if isinstance(kind, datasets.Value) else ""
        if isinstance(kind, datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
        elif storage in {"string", "large_string"} and self._folder is not None:
            return ImageFiles(rows[column][:], self._folder, place)
        elif storage not in {"binary", "large_binary"} and not (isinstance(kind, dict) and "bytes" in kind):
            raise DataError(
                f"{place}: has no images", hint="select the column with the images: `::image=COLUMN`"
            )

        def read(index: int) -> bytes | Path:
            cell = rows[index][column]
            if isinstance(cell, dict):
                path = cell.get("path")
                cell = Path(path) if cell["bytes"] is None and path else cell["bytes"]
            if not isinstance(cell, bytes | Path):
                raise DataError(f"{place}: row {index} has no image")
            return cell

        return read


def folder_of(ref: DataRef) -> Path:
    """Return the folder of the paths in a table."""
    return Path(ref.source).parent if ref.root is None else Path(ref.root)


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Image files named by a column, with paths relative to a folder.

    Attributes:
        cells: Cells of the column.
        folder: Folder of the paths.
        place: Name of the column in messages.
    """

    cells: Sequence[object]
    folder: Path
    place: str

    def __call__(self, row: int) -> Path:
        """Return the file of a row.

        Raises:
            DataError: If the cell contains no path.
            UnreadableError: If the file does not exist.
        """
        cell = self.cells[row]
        if not isinstance(cell, str) or not cell:
            raise DataError(f"{self.place}: row {row} has no image path: {cell!r:.80}")
        file = self.folder / cell
        if not os.path.isfile(file):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
            raise UnreadableError(
                f"{self.place}: row {row} has the path `{cell}`, which does not exist",
                hint=f"paths are relative to `{self.folder}`",
            )
        return file


def fetch_table(ref: DataRef) -> ArrowTable:
    """Return one split of a Hub data set.

    Raises:
        HubError: If the data set is unknown or private, or the Hub cannot be reached.
        DataError: If the configuration or split is unknown, or has to be chosen.
    """
    progress.step(f"Reading {ref.source}")
    with _translated(ref), quiet(), limited_client(ref.source):
        return ArrowTable(_load(ref), ref, place=ref.source)


def _load(ref: DataRef) -> Any:  # noqa: ANN401 - a `datasets.Dataset`, untyped
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    if ref.revision is not None and datasets.config.HF_HUB_OFFLINE:
        progress.warn(f"{ref.source}: HF_HUB_OFFLINE is set, so the cached copy may be of another revision")
    # a name without a scheme would read a local folder of this name
    address = f"hf://datasets/{ref.repo_id}"
    try:
        split = ref.split
        if split is None or split.isidentifier():  # other splits are slices like `train[:10%]`
            splits = datasets.get_dataset_split_names(address, ref.config, revision=ref.revision)
            split = choose(ref, "split", split, splits)
        return datasets.load_dataset(address, ref.config, split=split, revision=ref.revision)
    except ValueError:
        if not datasets.config.HF_HUB_OFFLINE:  # offline, the cache does not know the names
            choose(
                ref, "config", ref.config, datasets.get_dataset_config_names(address, revision=ref.revision)
            )
        raise


def choose(ref: DataRef, key: str, name: str | None, present: Sequence[str]) -> str:
    """Return `name` if it exists, or the only existing name if `name` is None.

    Args:
        ref: Data reference, for messages.
        key: `split` or `config`.
        name: Name in the reference, or None.
        present: Existing names.

    Raises:
        DataError: If the name does not exist, or one of several names has to be chosen.
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
    """Convert errors of the libraries to `DataError` and `HubError`."""
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
    # malformed slices raise ValueError, data sets with their own code RuntimeError, and full disks OSError
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{ref.source}: cannot be read: {reason_of(error)}") from error


@contextlib.contextmanager
def readable(path: Path, format_name: str, *, hint: str | None = None) -> Iterator[None]:
    """Convert errors of the libraries in the block to `DataError`.

    Args:
        path: The file or folder, for the message.
        format_name: Name of the format in the message.
        hint: Advice to the user.

    Raises:
        DataError: If the file cannot be read.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    try:
        yield
    # TypeError, LookupError and AttributeError come from malformed files of `datasets` and from its notes in
    # the metadata of other files
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as {format_name}: {reason_of(error)}", hint=hint) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disable progress bars, download counters and `datasets-server.HOST` of the library `datasets`.

    The library sends the token to `datasets-server.HOST`. Only for huggingface.co this host belongs to the
    Hub; for another endpoint its owner is unknown.
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
