"""From a DATA argument to images or texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never, overload

from hydractl.data.folder import open_folder
from hydractl.data.hub import open_hub, open_text_hub
from hydractl.data.images import ImageSet
from hydractl.data.items import Content, Items
from hydractl.data.labels import select_classes
from hydractl.data.reference import DataRef, SourceKind
from hydractl.data.tabular import open_file, open_text_file
from hydractl.data.texts import TextSet, open_text_folder, refuse_image_keys
from hydractl.data.toys.builtin import open_digits, open_noise, open_photos, spread
from hydractl.data.toys.prose import open_letters, open_manual, open_reviews
from hydractl.data.toys.shapes import open_shapes
from hydractl.errors import DataError, UsageError
from hydractl.progress import SILENT

if TYPE_CHECKING:
    from hydractl.progress import Progress

__all__ = ["Content", "ImageSet", "Items", "TextSet", "open_data"]


@overload
def open_data(
    ref: DataRef | str, *, wants: Literal[Content.IMAGES] = ..., progress: Progress = ...
) -> ImageSet: ...
@overload
def open_data(ref: DataRef | str, *, wants: Literal[Content.TEXTS], progress: Progress = ...) -> TextSet: ...
@overload
def open_data(ref: DataRef | str, *, wants: Content, progress: Progress = ...) -> Items: ...
def open_data(ref: DataRef | str, *, wants: Content = Content.IMAGES, progress: Progress = SILENT) -> Items:
    """Return the images or texts that a data reference selects.

    The split comes first, then `classes`, then `limit`, which spreads its items evenly over what is left, so
    that data sorted by class keep all their classes.

    Args:
        ref: A parsed reference, or the text of one.
        wants: What the items are to be.
        progress: Hears what is skipped or assumed.

    Raises:
        UsageError: If the reference is malformed, or names a column of the other kind.
        DataError: If the data are missing, malformed, of the other kind, or none is left.
        HubError: If the Hub cannot be reached.
    """
    if isinstance(ref, str):
        ref = DataRef.parse(ref)
    items = _open_texts(ref, progress) if wants is Content.TEXTS else _open_images(ref, progress)
    if ref.classes is not None:
        items = items.of_classes(select_classes(items.class_names, ref.classes))
    if ref.limit is not None and ref.limit < len(items):
        items = items.taken(spread(len(items), ref.limit))
    if len(items) == 0:
        raise DataError(f"{ref}: no {wants.one} is left")
    return items.taken(range(len(items)), name=_name(ref))


def _name(ref: DataRef) -> str:
    """Return the reference with no more of a path than its last part: reports travel."""
    if ref.kind not in {SourceKind.FOLDER, SourceKind.FILE}:
        return str(ref)
    return Path(ref.source).resolve().name + str(ref).removeprefix(ref.source)


def _open_images(ref: DataRef, progress: Progress) -> Items:
    if ref.text is not None:
        raise UsageError(
            f"`text={ref.text}` names a column of texts, and images are wanted here",
            hint="name the column with the images: `::image=COLUMN`",
        )
    match ref.kind:
        case SourceKind.DIGITS:
            return open_digits(ref)
        case SourceKind.SHAPES:
            return open_shapes(ref)
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
        case SourceKind.REVIEWS | SourceKind.MANUAL | SourceKind.LETTERS:
            raise DataError(
                f"{ref.kind.value} are texts, and the model reads images",
                hint="images are `digits`, `shapes`, a folder with one sub-folder a class, a table, or `hf:org/name`",
            )
        case _:
            assert_never(ref.kind)


def _open_texts(ref: DataRef, progress: Progress) -> Items:
    refuse_image_keys(ref)
    match ref.kind:
        case SourceKind.DIGITS | SourceKind.SHAPES | SourceKind.PHOTOS | SourceKind.NOISE:
            raise DataError(
                f"{ref.kind.value} are images, and the model reads texts",
                hint="texts are `reviews`, or come from a .jsonl, .csv or .parquet file, a folder of .txt files, or `hf:org/name`",
            )
        case SourceKind.REVIEWS:
            return open_reviews(ref)
        case SourceKind.MANUAL:
            return open_manual()
        case SourceKind.LETTERS:
            return open_letters(ref)
        case SourceKind.FOLDER:
            return open_text_folder(ref, progress)
        case SourceKind.FILE:
            return open_text_file(ref, progress)
        case SourceKind.HUB:
            return open_text_hub(ref, progress)
        case _:
            assert_never(ref.kind)
