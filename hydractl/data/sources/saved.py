"""Folders that the datasets library writes or reads: those of `save_to_disk`, and images with a metadata file beside them."""

from __future__ import annotations

import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydractl.data.reference import IMAGE_SUFFIXES, DataRef
from hydractl.data.sources.folder import is_hidden
from hydractl.data.sources.tables import ArrowTable, choose, quiet, readable
from hydractl.errors import DataError
from hydractl.messages import counted, quoted
from hydractl.progress import Progress

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that list the images of a folder with their labels."""
ALL = "all"
_METADATA_HINT = (
    "its column `file_name` must have paths relative to its folder, separated by commas in a .csv "
    "file; rename the file if it is not image metadata"
)


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
    with readable(root, "a folder written by `save_to_disk` of datasets"), quiet():
        dataset: Any = datasets.load_from_disk(root)
        if isinstance(dataset, datasets.DatasetDict):
            dataset = dataset[choose(ref, "split", ref.split, [*dataset])]
        elif ref.split is not None and root == Path(ref.source):
            raise DataError(f"{root}: has no splits", hint="leave `split=` out")
        dataset = dataset.with_format(None)
    return ArrowTable(dataset, ref, where=ref.source)


def has_metadata(ref: DataRef) -> bool:
    """Return whether a metadata file names the images of a folder, or of each of its splits."""
    return any(map(_metadata, _roots(ref))) or bool(_splits(Path(ref.source)))


def open_listed(ref: DataRef, progress: Progress) -> ArrowTable:
    """Return the table of images that metadata files name, as the library's `imagefolder` reads it; it keeps no copy.

    Splits are sub-folders with a metadata file each.

    Raises:
        DataError: If a metadata file is malformed or names a file that is missing, or a split is to be chosen.
    """
    import datasets  # noqa: PLC0415 - as above

    root = next(filter(_metadata, reversed(_roots(ref))), None)
    if root is None:
        root = Path(ref.source, choose(ref, "split", ref.split, _splits(Path(ref.source))))
    elif ref.split is not None and root == Path(ref.source):
        raise DataError(f"{root}: `{ref.split}` has no metadata file", hint="leave `split=` out")
    progress.step(f"Reading {root}")
    with (
        readable(root, "images with a metadata file", hint=_METADATA_HINT),
        quiet(),
        TemporaryDirectory() as cache,
    ):
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
        progress.warn(
            f"{root}: skipped {counted(len(unnamed), 'image')} that the metadata does not list: {quoted(unnamed)}"
        )
    return ArrowTable(table, ref, where=ref.source)


def _roots(ref: DataRef) -> list[Path]:
    """Return the folder, and that of the split in it."""
    return [Path(ref.source), *([Path(ref.source, ref.split)] if ref.split else [])]


def _is_saved(root: Path) -> bool:
    parts = all((root / name).is_file() for name in ("state.json", "dataset_info.json"))
    return parts or (root / "dataset_dict.json").is_file()


def _metadata(root: Path) -> bool:
    return any((root / name).is_file() for name in METADATA)


def _splits(root: Path) -> list[str]:
    """Return the sub-folders, if each of them holds a metadata file."""
    folders = [path for path in root.glob("*/") if not is_hidden(path.name)]
    return sorted(path.name for path in folders) if all(map(_metadata, folders)) else []
