"""Open the data set of a DATA reference and select its items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hydractl import progress
from hydractl.data import toys
from hydractl.data.batches import eval_batches
from hydractl.data.datasets import Content, Dataset, ImageSet, ItemPreprocess, T, content_of, samples_in
from hydractl.data.labels import apply_class_options
from hydractl.data.reference import (
    BUILT_IN_TEXTS,
    COLUMNS,
    MAX_ITEM,
    OF_IMAGES,
    SHARD_SUFFIX,
    DataRef,
    SourceKind,
)
from hydractl.data.sources import columns, files, folder, tables, webdataset
from hydractl.data.words import by_word, check_answerable
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Tokenization
from hydractl.messages import counted
from hydractl.tags import tag_scheme

TOYS: Mapping[SourceKind, Callable[[DataRef], Dataset]] = MappingProxyType(
    {
        SourceKind.DIGITS: toys.open_digits,
        SourceKind.PHOTOS: toys.open_photos,
        SourceKind.NOISE: toys.open_noise,
        SourceKind.INTENTS: toys.open_intents,
        SourceKind.MANUAL: toys.open_manual,
        SourceKind.LETTERS: toys.open_letters,
    }
)
SOURCES: Mapping[Content, str] = MappingProxyType(
    {
        Content.IMAGES: (
            "for images use `digits`, a folder with one sub-folder per class, a table, .tar shards, or "
            "`hf:org/name`"
        ),
        Content.TEXTS: (
            "for texts use `intents`, a .jsonl, .json, .csv, .tsv or .parquet file, a folder of .txt "
            "files, or `hf:org/name`"
        ),
    }
)


def open_data(
    ref: DataRef | str,
    *,
    content: Content = Content.IMAGES,
    labelled: bool = True,
    skip_bad: bool = False,
    pairs: bool | None = None,
) -> Dataset:
    """Return the images or texts that a data reference selects.

    The keys of the reference are applied in a fixed order: `split`, then `classes`, `map` and `classes-by`,
    then `limit`, then `part`. `limit` spreads its items evenly over the remaining items, to keep all classes
    of sorted data. The digest of a sample selects its part: equal samples belong to the same part in any
    file, order or subset.

    Args:
        ref: Parsed data reference, or its text.
        content: Expected type of the items.
        labelled: Whether to read labels if the data have labels. If False, a folder may hold files next to
            its sub-folders, unless the reference selects, renames or orders classes.
        skip_bad: Whether image files named by a table may be missing.
        pairs: Whether the model was trained on pairs of texts. None if unknown.

    Raises:
        UsageError: If the reference is malformed, or names a column of the other type of items.
        DataError: If the data are missing, malformed or of the other type, or no item is selected.
        HubError: If the Hub cannot be reached.
    """
    if isinstance(ref, str):
        ref = DataRef.parse(ref)
    _check_columns(ref, content)
    dataset = _opened(ref, content, reads_labels=labelled or ref.reads_classes, pairs=pairs)
    dataset = apply_class_options(dataset, ref)
    if dataset.task.by_word:
        progress.step(f"{dataset.name}: {tag_scheme(dataset.class_names)}")
    if ref.limit is not None and ref.limit < len(dataset):
        dataset = dataset.subset(toys.spread(len(dataset), ref.limit))
    if ref.part_numbers is not None:
        number, parts = ref.part_numbers
        dataset = dataset.subset(
            [i for i in range(len(dataset)) if _part_of(dataset, i, parts) == number - 1]
        )
    if len(dataset) == 0:
        raise DataError(f"{ref}: selects no {content.singular}")
    if isinstance(dataset, ImageSet) and not skip_bad:
        dataset.store.check_there(dataset.places)
    return _named(ref, dataset)


def _part_of(dataset: Dataset, index: int, parts: int) -> int:
    """Return the part of an item, in 0..parts-1. Unreadable images belong to part 0."""
    try:
        (sample,) = samples_in([dataset.item_digest(index)])
    except DataError:
        return 0
    return int(sample) * parts >> 64


def _named(ref: DataRef, dataset: Dataset) -> Dataset:
    if isinstance(dataset, ImageSet):
        dataset = replace(
            dataset, fast=ref.decode is not None, oriented=ref.exif is None, max_item=ref.max_item or MAX_ITEM
        )
    else:
        for key in OF_IMAGES:
            if value := getattr(ref, key):
                raise UsageError(
                    f"`{key}={value}` is for images, but the model reads texts", hint="leave it out"
                )
    return dataset.subset(range(len(dataset)), name=ref.name)


def _check_columns(ref: DataRef, content: Content) -> None:
    """Raise UsageError if a reference names a column of the other type of items."""
    if content is Content.TEXTS and ref.image is not None:
        raise UsageError(
            f"`image={ref.image}` selects a column of images, but the model reads texts",
            hint="select the column with the texts: `::text=COLUMN`",
        )
    if content is Content.IMAGES and ref.text is not None:
        raise UsageError(
            f"`text={ref.text}` selects a column of texts, but images are needed",
            hint="select the column with the images: `::image=COLUMN`",
        )


def _opened(ref: DataRef, content: Content, *, reads_labels: bool, pairs: bool | None) -> Dataset:
    if ref.kind in TOYS:
        toy_content = Content.TEXTS if ref.kind in BUILT_IN_TEXTS else Content.IMAGES
        if toy_content is not content:
            raise DataError(
                f"{ref.kind.value} are {toy_content}, but the model reads {content}", hint=SOURCES[content]
            )
        return TOYS[ref.kind](ref)
    # `label=` names a column of a table, even if the caller needs no labels
    labelled = reads_labels or ref.label is not None
    if _holds_files(ref, content, labelled=labelled):
        return (folder.open_folder if reads_labels else folder.open_tree)(ref, content)
    table = _table(ref, content, labelled=labelled)
    if len(table) == 0:
        raise DataError(f"{table.display_name}: has no rows")
    table.label_separator = ref.label_separator
    if content is Content.IMAGES:
        return columns.images_of(table, ref, labelled=labelled)
    words = columns.word_column(table, ref, has_texts=any(columns.usual_texts(table)))
    if words is not None:
        return columns.words_of(table, words, ref, labelled=labelled)
    return columns.texts_of(table, ref, labelled=labelled, pairs=pairs)


def _holds_files(ref: DataRef, content: Content, *, labelled: bool) -> bool:
    """Return whether the items are the files below a folder, not the rows of a table in the folder.

    A folder of images with a metadata file is a table if labels are read, or the reference names an image
    column. Folders of shards and of `save_to_disk` are always tables.

    Raises:
        UsageError: If the items are files and the reference names a column.
    """
    if ref.kind is not SourceKind.FOLDER or webdataset.shards_in(ref) or folder.is_saved(ref):
        return False
    if content is Content.IMAGES and (labelled or ref.image) and folder.has_metadata(ref):
        return False
    for key in sorted(COLUMNS):
        if getattr(ref, key.replace("-", "_")) is not None:
            raise UsageError(
                f"`{ref}`: the folder is not a table, so `{key}=` has no effect", hint=f"leave `{key}=` out"
            )
    return True


def _table(ref: DataRef, content: Content, *, labelled: bool) -> tables.DataTable:
    if ref.kind is SourceKind.HUB:
        return tables.fetch_table(ref)
    if ref.source.lower().endswith(SHARD_SUFFIX) or webdataset.shards_in(ref):
        return webdataset.open_shards(ref)
    if ref.kind is SourceKind.FOLDER:
        return folder.open_saved(ref) if folder.is_saved(ref) else folder.open_listed(ref)
    return files.open_table(ref, content, labelled=labelled)


def open_items(
    ref: DataRef | str,
    preprocess: ItemPreprocess,
    *,
    labelled: bool = True,
    workers: int | None = 0,
    skip_bad: bool = False,
) -> Dataset:
    """Return the data that a reference selects, in the form that a model reads.

    For a token classifier, texts become rows of words (`by_word`).

    Args:
        ref: Parsed data reference, or its text.
        preprocess: Preprocessing or tokenization of the model.
        labelled: See `open_data`.
        workers: Number of processes that decode images, 0 for threads. None chooses; see `WorkerPool.of`.
        skip_bad: Whether to leave out unreadable images, with a warning. See `open_readable`.

    Raises:
        UsageError: See `open_data`.
        DataError: See `open_data`. Also if a text of a token classifier has no word to answer.
        HubError: If the Hub cannot be reached.
    """
    if skip_bad:
        dataset, left_out = open_readable(ref, preprocess, labelled=labelled, workers=workers)
        if left_out:
            progress.warn(left_out)
        return dataset
    dataset = with_workers(
        open_data(
            ref,
            content=content_of(preprocess),
            labelled=labelled,
            pairs=preprocess.pairs if isinstance(preprocess, Tokenization) else None,
        ),
        workers,
    )
    if not (isinstance(preprocess, Tokenization) and preprocess.by_word):
        return dataset
    return check_answerable(by_word(dataset, preprocess))


def open_readable(
    ref: DataRef | str, preprocess: ItemPreprocess, *, labelled: bool = True, workers: int | None = 0
) -> tuple[Dataset, str | None]:
    """Return the readable images of a reference, and a message about the others.

    Each image is decoded once. The arguments are those of `open_items`.

    Returns:
        The images, and a message like `DATA: skipped 2 of 9 images, which are unreadable; the first is ...`.
        The message is None if all images are readable.

    Raises:
        UsageError: If the items are texts.
        DataError: If no image is readable.
    """
    dataset = open_lenient(ref, preprocess, labelled=labelled, workers=workers)
    unreadable: dict[int, str] = {}
    for batch in eval_batches(dataset, preprocess, batch_size=64, limit_bytes=0):
        unreadable.update(batch.bad)
    dataset = replace(dataset, lenient=False)
    if not unreadable:
        return dataset, None
    first = f"the first is {unreadable[min(unreadable)]}"
    if len(unreadable) == len(dataset):
        raise DataError(f"{dataset.name}: all images are unreadable; {first}")
    readable = dataset.subset([i for i in range(len(dataset)) if i not in unreadable])
    left_out = f"skipped {len(unreadable)} of {counted(len(dataset), 'image')}, which are unreadable"
    return readable, f"{dataset.name}: {left_out}; {first}"


def open_lenient(
    ref: DataRef | str, preprocess: ItemPreprocess, *, labelled: bool = True, workers: int | None = 0
) -> ImageSet:
    """Return images that may be unreadable or missing. The arguments are those of `open_items`.

    Raises:
        UsageError: If the items are texts.
    """
    dataset = open_data(ref, content=content_of(preprocess), labelled=labelled, skip_bad=True)
    if not isinstance(dataset, ImageSet):
        raise UsageError("`--skip-bad` is for images, but the model reads texts", hint="leave it out")
    return replace(with_workers(dataset, workers), lenient=True)


def accept_unreadable(dataset: Dataset) -> Dataset:
    """Return a data set whose batches accept unreadable images. Texts are returned unchanged."""
    return replace(dataset, lenient=True) if isinstance(dataset, ImageSet) else dataset


def with_workers(dataset: T, workers: int | None) -> T:
    """Return a data set whose images are decoded by `workers` processes. Texts are returned unchanged.

    Args:
        dataset: The data.
        workers: Number of processes, 0 for threads. None chooses by the number of images and cores.
    """
    return (
        replace(dataset, workers=WorkerPool.of(workers, images=len(dataset)))
        if isinstance(dataset, ImageSet)
        else dataset
    )
