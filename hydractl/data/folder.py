"""A folder of images or texts: one sub-folder a class, or files alone."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.data.images import ImageSet, check_header, decode, read_bytes
from hydractl.data.items import Content
from hydractl.data.reference import BUILT_IN, SOURCES_HINT, did_you_mean
from hydractl.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    from hydractl.data.reference import DataRef
    from hydractl.progress import Progress


@dataclass(frozen=True, slots=True)
class FileKind:
    """Which files of a folder count.

    Attributes:
        content: What they hold.
        suffixes: How their names end, in small letters.
    """

    content: Content
    suffixes: frozenset[str]


IMAGE_FILES = FileKind(
    Content.IMAGES,
    frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"}),
)
TEXT_FILES = FileKind(Content.TEXTS, frozenset({".txt"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSet(ImageSet):
    """Image files under one folder.

    Attributes:
        root: The folder.
        files: Paths below `root` with forward slashes, class by class, sorted.
        name: As in every set.
        class_names: Names of the sub-folders, sorted; empty if the images lie in the folder itself.
        labels: As in every set.
    """

    root: Path
    files: tuple[str, ...]
    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> Image.Image:
        """Decode one file."""
        path = self.root / self.files[index]
        return decode(read_bytes(path), where=str(path))

    def item_digest(self, index: int) -> bytes:
        """Return a SHA-256 of the path below the folder and the file's bytes.

        Every stage takes the digests first, so a file that is no image is found before anything is computed.

        Raises:
            DataError: If the file cannot be read or is no image.
        """
        path = self.root / self.files[index]
        data = read_bytes(path)
        check_header(data, where=str(path))
        return hashlib.sha256(os.fsencode(self.files[index]) + b"\0" + data).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files under a folder; attributes as of `FolderSet`."""

    root: Path
    files: tuple[str, ...]
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None


def open_folder(ref: DataRef, progress: Progress) -> FolderSet:
    """Return the images under a folder.

    Raises:
        DataError: If the folder, the split or a class's images are missing, or classes and loose images mix.
    """
    found = list_files(ref, IMAGE_FILES, progress)
    return FolderSet(
        root=found.root,
        files=found.files,
        name=found.root.resolve().name,
        class_names=found.class_names,
        labels=found.labels,
    )


def list_files(ref: DataRef, kind: FileKind, progress: Progress) -> Listing:
    """Return the files of one kind under a folder, class by class.

    Hidden files are left alone; others that are not of the kind are skipped with a warning.

    Raises:
        DataError: If the folder, the split or a class's files are missing, or classes and loose files mix.
    """
    root, what = _root(ref), kind.content
    folders, loose, skipped = _listing(root, kind)
    if folders and loose:
        raise DataError(
            f"{root}: holds both {what} (`{loose[0]}`) and sub-folders (`{folders[0]}`)",
            hint=f"keep one sub-folder a class and nothing beside, or {what} alone for a set without labels",
        )
    if not folders and not loose:
        raise DataError(
            f"{root}: holds no {what.one}",
            hint=_other_kind(skipped, kind) or f"{what} end in {', '.join(sorted(kind.suffixes))}",
        )
    files, labels = list(loose), []
    for label, folder in enumerate(folders):
        nested, found, others = _listing(root / folder, kind)
        if not found:
            raise _empty_class(root / folder, kind, nested=nested, others=others)
        files += [f"{folder}/{name}" for name in found]
        labels += [label] * len(found)
        skipped += [f"{folder}/{name}" for name in others]
    if skipped:
        progress.warn(f"{root}: skipped {len(skipped)} file(s) that are no {what}, first `{skipped[0]}`")
    return Listing(
        root=root,
        files=tuple(files),
        class_names=tuple(folders),
        labels=tuple(labels) if folders else None,
    )


def _root(ref: DataRef) -> Path:
    root = Path(ref.source)
    if not root.exists():
        raise DataError(
            f"{ref.source}: no such folder or file", hint=did_you_mean(ref.source, BUILT_IN) or SOURCES_HINT
        )
    if not root.is_dir():
        raise DataError(f"{ref.source}: is neither a folder nor a data file", hint=SOURCES_HINT)
    if ref.split is None:
        return root
    if not (root / ref.split).is_dir():
        folders = _listing(root, IMAGE_FILES)[0]
        present = ", ".join(f"`{name}`" for name in folders) or "no sub-folder at all"
        raise DataError(
            f"{root}: has no split `{ref.split}`; it holds {present}", hint=did_you_mean(ref.split, folders)
        )
    return root / ref.split


def _listing(folder: Path, kind: FileKind) -> tuple[list[str], list[str], list[str]]:
    """Return the names of sub-folders, files of the kind and others, each sorted, hidden ones left out."""
    try:
        entries = sorted(
            (entry for entry in folder.iterdir() if not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    folders = [entry.name for entry in entries if entry.is_dir()]
    files = [entry for entry in entries if not entry.is_dir()]
    wanted = [entry.name for entry in files if entry.suffix.lower() in kind.suffixes]
    others = [entry.name for entry in files if entry.suffix.lower() not in kind.suffixes]
    return folders, wanted, others


def _empty_class(folder: Path, kind: FileKind, *, nested: list[str], others: list[str]) -> DataError:
    what, name = kind.content, folder.name
    hint = (
        f"if `{name}` is a split, add `::split={name}`; {what} lie directly in their class's folder"
        if nested
        else _other_kind(others, kind) or f"remove the folder or add {what} to it"
    )
    return DataError(f"{folder.parent}: class folder `{name}` holds no {what.one}", hint=hint)


def _other_kind(names: list[str], wanted: FileKind) -> str | None:
    """Return a hint if files are of the kind that this model does not read."""
    for kind in (IMAGE_FILES, TEXT_FILES):
        found = next((name for name in names if Path(name).suffix.lower() in kind.suffixes), None)
        if kind is not wanted and found is not None:
            return f"there are {kind.content}, such as `{found}`, but the model reads {wanted.content}"
    return None
