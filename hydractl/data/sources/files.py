"""Local .jsonl, .json, .csv, .tsv and .parquet files as tables; nothing is written, not even a cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hydractl.data.reference import DataRef
from hydractl.data.sources.csv_jsonl import read_rows
from hydractl.data.sources.tables import ArrowTable, DataTable, RowTable, folder_of
from hydractl.errors import DataError, reason_of

if TYPE_CHECKING:
    from hydractl.data.datasets import Content


def open_table(ref: DataRef, content: Content) -> DataTable:
    """Return the table in a file.

    Args:
        ref: Names the file.
        content: What is looked for, for hints.

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
        return ParquetTable.read(path, ref)
    return RowTable(read_rows(path, content), path, folder_of(ref))


class ParquetTable(ArrowTable):
    """The rows of a .parquet file; columns of a type that `datasets` does not know are there, and refused when they are read."""

    def __init__(self, dataset: Any, ref: DataRef, *, where: str, unknown: Mapping[str, str]) -> None:  # noqa: ANN401 - the library is untyped
        """Take up a file.

        Args:
            dataset: The columns whose types are known.
            ref: Names it.
            where: As in `Table`.
            unknown: The types of the others, by their names.
        """
        super().__init__(dataset, ref, where=where)
        self.columns = (*self.columns, *unknown)
        self._unknown = unknown

    @classmethod
    def read(cls, path: Path, ref: DataRef) -> ParquetTable:
        """Return the table in a file.

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

        try:
            table = pq.read_table(path)
            unknown = {column.name: str(column.type) for column in table.schema if not is_known(column)}
            readable = table.select([name for name in table.column_names if name not in unknown])
            # the library's own reader would leave a copy in its cache
            dataset = datasets.Dataset(datasets.table.InMemoryTable(readable))
        # the latter are what the library's notes in a file's metadata end in that are none
        except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f"{path}: cannot be read as Parquet: {reason_of(error)}") from error
        if unknown and not readable.column_names:
            types = ", ".join(f"`{name}` ({kind})" for name, kind in unknown.items())
            raise DataError(f"{path}: holds no column of a type that can be read, but {types}")
        return cls(dataset, ref, where=str(path), unknown=unknown)

    @override
    def rows(self, column: str) -> Any:
        if column in self._unknown:
            raise DataError(
                f"{self.place(column)}: is of the type `{self._unknown[column]}`, which cannot be read",
                hint="name another column, or write it as texts or numbers",
            )
        return super().rows(column)
