"""Folders of files by class, folders written by `save_to_disk`, and images with a metadata file."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from hydractl import progress
from hydractl.data import datasets, decoding
from hydractl.data.datasets import Content
from hydractl.data.reference import IMAGE_SUFFIXES, SOURCES_HINT, DataRef
from hydractl.data.sources.files import read_text
from hydractl.data.sources.tables import ArrowTable, choose, quiet, readable
from hydractl.errors import DataError
from hydractl.messages import counted, did_you_mean, quoted

SUFFIXES: Mapping[Content, frozenset[str]] = MappingProxyType(
    {
        Content.IMAGES: frozenset(IMAGE_SUFFIXES),
        Content.TEXTS: frozenset({".txt"}),
    }
)
"""Suffixes of the files to read, in lower case."""
OF_SYSTEMS = frozenset({"__macosx", "thumbs.db", "desktop.ini"})
"""Names of files and folders that macOS and Windows add, in lower case."""
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
"""Usual names of splits."""


def is_hidden(name: str) -> bool:
    """Return whether a name is ignored without a warning: hidden, or added by macOS or Windows."""
    return name.startswith(".") or name.lower() in OF_SYSTEMS


def open_folder(ref: DataRef, content: Content) -> datasets.Dataset:
    """Return the images or texts under a folder with one sub-folder per class.

    The order is the order of torchvision's `ImageFolder`. A file of text is one item. Files at any depth
    below a class folder belong to the class. Hidden files are ignored. Other files that are not of the type
    are skipped with a warning. A folder without sub-folders gives a set without labels.

    Raises:
        DataError: If the folder, the split or the files of a class are missing, the folder has both
            sub-folders and files, or a text is empty or not UTF-8.
    """
    root = _root(ref)
    folders, loose, skipped = _listing(root, content)
    if folders and loose:
        raise DataError(
            f"{root}: contains both {content} (`{loose[0]}`) and sub-folders (`{folders[0]}`)",
            hint=f"use only one sub-folder per class, or only {content} for a set without labels",
        )
    if not folders and not loose:
        raise _nothing(root, content, skipped)
    _refuse_splits(root, folders, content)
    files, labels = list(loose), []
    for label, folder in enumerate(folders):
        class_files, others = _walk(root, f"{folder}/", content)
        if not class_files:
            raise DataError(
                f"{root}: class folder `{folder}` has no {content.singular}",
                hint=_other_kind(others, content) or f"add {content} to it, or move it out of `{root}`",
            )
        files += class_files
        labels += [label] * len(class_files)
        skipped += others
    _tell_skipped(root, content, skipped)
    names = tuple(os.fsencode(folder).decode(errors="backslashreplace") for folder in folders)
    return _items(root, content, tuple(files), datasets.Labels(names, tuple(labels) if folders else None))


def open_tree(ref: DataRef, content: Content) -> datasets.Dataset:
    """Return all images or texts at any depth below a folder, without labels, sorted by folder and name.

    Hidden files and folders are ignored. Other files that are not of the type are skipped with a warning.

    Raises:
        DataError: If the folder is missing or has no items, or a text is empty or not UTF-8.
    """
    root = _root(ref)
    files, skipped = _walk(root, "", content)
    if not files:
        raise _nothing(root, content, skipped)
    _tell_skipped(root, content, skipped)
    return _items(root, content, tuple(files), datasets.Labels())


def _items(root: Path, content: Content, files: tuple[str, ...], labels: datasets.Labels) -> datasets.Dataset:
    name = root.resolve().name
    if content is Content.TEXTS:
        paths = [root / file for file in files]
        texts, keys = tuple(map(_text, paths)), tuple(map(str, paths))
        return datasets.TextSet(texts=texts, keys=keys, name=name, **labels._asdict())
    store = datasets.ImageStore(source=lambda index: root / files[index], checks_headers=True)
    return datasets.ImageSet(store=store, places=range(len(files)), name=name, **labels._asdict())


def _text(path: Path) -> str:
    text = read_text(path)
    if not text.strip():
        raise DataError(f"{path}: has no text", hint="write a text into it, or move it out of the folder")
    return text


def _walk(root: Path, below: str, content: Content) -> tuple[list[str], list[str]]:
    """Return the files of the type and the other files below a folder, as paths relative to `root`.

    Files are in the order of `sorted(os.walk(...))`. A folder reached twice through links is read once. A
    link to a parent of the folder is not followed, because its other folders are other classes.
    """
    listed: dict[str, tuple[list[str], list[str]]] = {}
    waiting, visited = [below], {*(root / below).resolve().parents}
    while waiting:
        folder = waiting.pop()
        if (place := (root / folder).resolve()) in visited:
            continue
        visited.add(place)
        folders, matching, others = _listing(root / folder, content)
        waiting += [f"{folder}{name}/" for name in folders]
        listed[folder.rstrip("/")] = (
            [f"{folder}{name}" for name in matching],
            [f"{folder}{name}" for name in others],
        )
    ordered = [listed[folder] for folder in sorted(listed)]
    return [file for matching, _ in ordered for file in matching], [
        file for _, others in ordered for file in others
    ]


def _refuse_splits(root: Path, folders: list[str], content: Content) -> None:
    """Raise if sub-folders may be splits instead of classes.

    Raises:
        DataError: If sub-folders have usual names of splits, or only one exists, and they hold only folders.
    """
    look_like_splits = len(folders) == 1 or {folder.casefold() for folder in folders} <= SPLITS
    if not folders or not look_like_splits:
        return
    listings = [_listing(root / folder, content) for folder in folders]
    if any(nested for nested, _, _ in listings) and not any(matching for _, matching, _ in listings):
        raise DataError(
            f"{root}: {quoted(folders)} may be splits or classes: they contain no {content}, but further folders",
            hint=f"for the classes in `{folders[0]}` add `::split={folders[0]}`",
        )


def _tell_skipped(root: Path, content: Content, skipped: list[str]) -> None:
    if skipped:
        progress.warn(f"{root}: skipped files that are not {content} ({len(skipped)}): {quoted(skipped)}")


def _nothing(root: Path, content: Content, skipped: list[str]) -> DataError:
    return DataError(
        f"{root}: has no {content.singular}",
        hint=_other_kind(skipped, content)
        or f"suffixes of {content}: {', '.join(sorted(SUFFIXES[content]))}",
    )


def _root(ref: DataRef) -> Path:
    ref.check_there()
    root = Path(ref.source)
    if not root.is_dir():
        raise DataError(f"{ref.source}: is neither a folder nor a data file", hint=SOURCES_HINT)
    if ref.split is None:
        return root
    if not (root / ref.split).is_dir():
        folders = _listing(root, Content.IMAGES)[0]
        raise DataError(
            f"{root}: has no split `{ref.split}`; it has {quoted(folders) or 'no sub-folders'}",
            hint=did_you_mean(ref.split, folders),
        )
    return root / ref.split


def _listing(folder: Path, content: Content) -> tuple[list[str], list[str], list[str]]:
    """Return the sorted names of sub-folders, files of the type, and other files, without hidden names.

    Raises:
        DataError: If the folder cannot be read.
    """
    try:
        entries = sorted(
            (entry for entry in folder.iterdir() if not is_hidden(entry.name)),
            key=lambda entry: entry.name,
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    folders = [entry.name for entry in entries if entry.is_dir()]
    files = [entry for entry in entries if not entry.is_dir()]
    matching = [
        entry.name
        for entry in files
        if entry.suffix.lower() in SUFFIXES[content]
        or (content is Content.IMAGES and entry.is_file() and decoding.is_image(entry))
    ]
    return folders, matching, sorted({entry.name for entry in files} - {*matching})


def _other_kind(names: list[str], expected: Content) -> str | None:
    """Return a hint if one of the files is of the other type of items. None otherwise."""
    for content, suffixes in SUFFIXES.items():
        example = next((name for name in names if Path(name).suffix.lower() in suffixes), None)
        if content is not expected and example is not None:
            return f"it has {content}, such as `{example}`, but the model reads {expected}"
    return None


METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of metadata files, which list the images of a folder with their labels."""
ALL = "all"
_METADATA_HINT = (
    "its column `file_name` must have paths relative to its folder, separated by commas in a .csv "
    "file; rename the file if it is not image metadata"
)


def is_saved(ref: DataRef) -> bool:
    """Return whether `save_to_disk` of `datasets` wrote the folder of a reference."""
    return any(map(_is_saved, _roots(ref)))


def open_saved(ref: DataRef) -> ArrowTable:
    """Return the table in a folder written by `save_to_disk`, or one split of a `DatasetDict`.

    Raises:
        DataError: If the folder is malformed, the split does not exist, or one of several splits has to be
            chosen.
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
    return ArrowTable(dataset, ref, place=ref.source)


def has_metadata(ref: DataRef) -> bool:
    """Return whether a metadata file lists the images of a folder, or of each of its splits."""
    return any(map(_metadata, _roots(ref))) or bool(_splits(Path(ref.source)))


def open_listed(ref: DataRef) -> ArrowTable:
    """Return the table of images in metadata files, read by `imagefolder` of `datasets`.

    No copy is cached. Splits are sub-folders with a metadata file each. A warning lists images that the
    metadata do not list.

    Raises:
        DataError: If a metadata file is malformed, names a missing file, or a split has to be chosen.
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
    return ArrowTable(table, ref, place=ref.source)


def _roots(ref: DataRef) -> list[Path]:
    """Return the folder of a reference, followed by the folder of its split."""
    return [Path(ref.source), *([Path(ref.source, ref.split)] if ref.split else [])]


def _is_saved(root: Path) -> bool:
    return (root / "dataset_dict.json").is_file() or (
        (root / "state.json").is_file() and (root / "dataset_info.json").is_file()
    )


def _metadata(root: Path) -> bool:
    return any((root / name).is_file() for name in METADATA)


def _splits(root: Path) -> list[str]:
    """Return the sub-folders if each of them has a metadata file, else an empty list."""
    folders = [path for path in root.glob("*/") if not is_hidden(path.name)]
    return sorted(path.name for path in folders) if all(map(_metadata, folders)) else []
