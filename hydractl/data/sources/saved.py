"""Folders that the datasets library writes or reads: those of `save_to_disk`, and images with a metadata file beside them."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydractl.data.reference import IMAGE_SUFFIXES, DataRef
from hydractl.data.sources.tabular import ArrowTable, choose, quiet
from hydractl.errors import DataError, reason_of
from hydractl.progress import Progress

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""The files that name the images of a folder, with their labels."""
ALL = "all"


def is_saved(ref: DataRef) -> bool:
    """Return whether a folder is what `save_to_disk` writes."""
    return any(map(_is_saved, _roots(ref)))


def open_saved(ref: DataRef, progress: Progress) -> ArrowTable:
    """Return the table that `save_to_disk` wrote: of a `DatasetDict` one split.

    Raises:
        DataError: If the folder is malformed, or has no such split, or has several and none is chosen.
    """
    import datasets  # noqa: PLC0415 - seconds of import that other data need not pay

    root = next(filter(_is_saved, _roots(ref)))
    progress.step(f"Reading {ref.source}")
    with _readable(root, "what `save_to_disk` of datasets writes"), quiet():
        found: Any = datasets.load_from_disk(root)
        if isinstance(found, datasets.DatasetDict):
            found = found[choose(ref, "split", ref.split, [*found])]
        elif ref.split is not None and root == Path(ref.source):
            raise DataError(f"{root}: has no splits", hint="leave `split=` out")
        found = found.with_format(None)
    return ArrowTable(found, ref, where=ref.source)


def has_metadata(ref: DataRef) -> bool:
    """Return whether a metadata file names the images of a folder, or of its splits."""
    return any(_metadata(root) or _splits(root) for root in _roots(ref))


def open_listed(ref: DataRef, progress: Progress) -> ArrowTable:
    """Return the table of images that metadata files name, as the library's `imagefolder` reads it; it keeps no copy.

    Splits are sub-folders with a metadata file each.

    Raises:
        DataError: If a metadata file is malformed or names a file that is missing, or a split is to be chosen.
    """
    import datasets  # noqa: PLC0415 - as above

    root = Path(ref.source)
    if not _metadata(root) or ref.split is not None:
        root /= choose(ref, "split", ref.split, _splits(root))
    progress.step(f"Reading {root}")
    with _readable(root, "images with a metadata file"), quiet(), TemporaryDirectory() as cache:
        builder = datasets.load_dataset_builder(
            "imagefolder", data_files={ALL: f"{glob.escape(str(root.absolute()))}/**"}, cache_dir=cache
        )
        stream = builder.as_streaming_dataset(split=ALL)
        images = [name for name, kind in stream.features.items() if isinstance(kind, datasets.Image)]
        for name in images:
            stream = stream.cast_column(name, datasets.Image(decode=False))
        rows = [*stream]
        table = datasets.Dataset.from_list(rows, features=stream.features)
        named = {row[name]["path"] for row in rows for name in images if row[name]}
    files = {file for file in builder.config.data_files[ALL] if file.lower().endswith(IMAGE_SUFFIXES)}
    if unnamed := sorted(files - named):
        progress.warn(f"{root}: left out {len(unnamed)} image(s) that no metadata name, first `{unnamed[0]}`")
    return ArrowTable(table, ref, where=ref.source)


def _roots(ref: DataRef) -> list[Path]:
    """Return the folder, and that of the split in it."""
    return [Path(ref.source), *([Path(ref.source, ref.split)] if ref.split else [])]


def _is_saved(root: Path) -> bool:
    return any((root / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _metadata(root: Path) -> bool:
    return any((root / name).is_file() for name in METADATA)


def _splits(root: Path) -> list[str]:
    """Return the sub-folders that hold a metadata file."""
    return sorted({path.parent.name for name in METADATA for path in root.glob(f"*/{name}")})


@contextmanager
def _readable(root: Path, what: str) -> Iterator[None]:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    try:
        yield
    # the latter are what malformed files of the library's own end in
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{root}: cannot be read as {what}: {reason_of(error)}") from error
