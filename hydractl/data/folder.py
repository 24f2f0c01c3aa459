"""A folder of images: one sub-folder a class, or images alone."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.data.images import ImageSet, decode, read_bytes
from hydractl.data.reference import SOURCES_HINT, did_you_mean
from hydractl.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    from hydractl.data.reference import DataRef
    from hydractl.progress import Progress

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".gif"})
BUILTIN = ("digits", "photos", "noise")


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
        """Return a SHA-256 of the path below the folder and the file's bytes."""
        relative = self.files[index]
        sha = hashlib.sha256(os.fsencode(relative) + b"\0")
        sha.update(read_bytes(self.root / relative))
        return sha.digest()


def open_folder(ref: DataRef, progress: Progress) -> FolderSet:
    """Return the images under a folder.

    Hidden files are left alone; other files that are no images are skipped with a warning.

    Raises:
        DataError: If the folder, the split or a class's images are missing, or classes and loose images mix.
    """
    root = _root(ref)
    folders, images, skipped = _listing(root)
    if folders and images:
        raise DataError(
            f"{root}: holds both images (`{images[0]}`) and sub-folders (`{folders[0]}`)",
            hint="keep one sub-folder a class and nothing beside, or images alone for a set without labels",
        )
    if not folders and not images:
        raise DataError(f"{root}: holds no image", hint=f"images end in {', '.join(sorted(SUFFIXES))}")
    files, labels = list(images), []
    for label, folder in enumerate(folders):
        nested, found, others = _listing(root / folder)
        if not found:
            raise _empty_class(root, folder, nested)
        files += [f"{folder}/{name}" for name in found]
        labels += [label] * len(found)
        skipped += [f"{folder}/{name}" for name in others]
    if skipped:
        progress.warn(f"{root}: skipped {len(skipped)} file(s) that are no images, first `{skipped[0]}`")
    return FolderSet(
        root=root,
        files=tuple(files),
        name=root.resolve().name,
        class_names=tuple(folders),
        labels=tuple(labels) if folders else None,
    )


def _root(ref: DataRef) -> Path:
    root = Path(ref.source)
    if not root.exists():
        raise DataError(
            f"{ref.source}: no such folder or file", hint=did_you_mean(ref.source, BUILTIN) or SOURCES_HINT
        )
    if not root.is_dir():
        raise DataError(f"{ref.source}: is neither a folder nor a data file", hint=SOURCES_HINT)
    if ref.split is None:
        return root
    if not (root / ref.split).is_dir():
        folders = _listing(root)[0]
        present = ", ".join(f"`{name}`" for name in folders) or "no sub-folder at all"
        raise DataError(
            f"{root}: has no split `{ref.split}`; it holds {present}", hint=did_you_mean(ref.split, folders)
        )
    return root / ref.split


def _listing(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the names of sub-folders, images and other files, each sorted, hidden ones left out."""
    try:
        entries = sorted(
            (entry for entry in folder.iterdir() if not entry.name.startswith(".")),
            key=lambda entry: entry.name,
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    folders = [entry.name for entry in entries if entry.is_dir()]
    files = [entry for entry in entries if not entry.is_dir()]
    images = [entry.name for entry in files if entry.suffix.lower() in SUFFIXES]
    others = [entry.name for entry in files if entry.suffix.lower() not in SUFFIXES]
    return folders, images, others


def _empty_class(root: Path, folder: str, nested: list[str]) -> DataError:
    hint = (
        f"if `{folder}` is a split, add `::split={folder}`; images lie directly in their class's folder"
        if nested
        else "remove the folder or add images to it"
    )
    return DataError(f"{root}: class folder `{folder}` holds no image", hint=hint)
