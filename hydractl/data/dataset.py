"""From a DATA argument to images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from hydractl.data.builtin import open_digits, open_noise, open_photos, spread
from hydractl.data.folder import open_folder
from hydractl.data.hub import open_hub
from hydractl.data.images import ImageSet, Subset
from hydractl.data.labels import select_classes
from hydractl.data.reference import DataRef, SourceKind
from hydractl.data.tabular import open_file
from hydractl.errors import DataError, UsageError
from hydractl.progress import SILENT

if TYPE_CHECKING:
    from hydractl.progress import Progress

__all__ = ["ImageSet", "Subset", "open_data"]


def open_data(ref: DataRef | str, *, progress: Progress = SILENT) -> ImageSet:
    """Return the images that a data reference selects.

    The split comes first, then `classes`, then `limit`, which spreads its items evenly over what is left, so
    that data sorted by class keep all their classes.

    Args:
        ref: A parsed reference, or the text of one.
        progress: Hears what is skipped or assumed.

    Raises:
        UsageError: If the reference is malformed or names a text column.
        DataError: If the data are missing, malformed, or none is left.
        HubError: If the Hub cannot be reached.
    """
    if isinstance(ref, str):
        ref = DataRef.parse(ref)
    if ref.text is not None:
        raise UsageError(f"`text={ref.text}` names a column of texts, and images are wanted here")
    images = _open(ref, progress)
    if ref.classes is not None:
        images = Subset.of_classes(images, select_classes(images.class_names, ref.classes))
    if ref.limit is not None and ref.limit < len(images):
        images = Subset.of(images, tuple(spread(len(images), ref.limit)))
    if len(images) == 0:
        raise DataError(f"{ref}: no image is left")
    return replace(Subset.of(images, tuple(range(len(images)))), name=_name(ref))


def _name(ref: DataRef) -> str:
    """Return the reference with no more of a path than its last part: reports travel."""
    if ref.kind not in {SourceKind.FOLDER, SourceKind.FILE}:
        return str(ref)
    return Path(ref.source).resolve().name + str(ref).removeprefix(ref.source)


def _open(ref: DataRef, progress: Progress) -> ImageSet:
    match ref.kind:
        case SourceKind.DIGITS:
            return open_digits(ref)
        case SourceKind.PHOTOS:
            return open_photos(ref)
        case SourceKind.NOISE:
            return open_noise(ref)
        case SourceKind.FOLDER:
            return open_folder(ref, progress)
        case SourceKind.FILE:
            return open_file(ref, progress)
        case SourceKind.HUB:
            return open_hub(ref, progress)
        case _:
            assert_never(ref.kind)
