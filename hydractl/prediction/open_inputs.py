"""Models with the preprocessing of a run, and their data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from hydractl import progress
from hydractl.data.batches import check_readable_by, with_max_length
from hydractl.data.datasets import LABELS_HINT, Dataset, samples_in
from hydractl.data.decoding import SAMPLE_BYTES
from hydractl.data.labels import check_labels, match_classes, model_labels
from hydractl.data.open_dataset import open_items
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.families.open_model import OpenModel, open_model
from hydractl.manifest.document import Fingerprint, pack_digests
from hydractl.manifest.header import Header, Preprocess, SampledFile
from hydractl.messages import counted, quoted
from hydractl.prediction.class_names import Classes
from hydractl.processes.distributed import ProcessGroup
from hydractl.settings import long_option


def override_preprocessing(header: Header, image_options: Mapping[str, Any], *, place: str) -> Header:
    """Return a header with changed preprocessing of images.

    If both mean and standard deviation are given, the preprocessing no longer counts as assumed.

    Args:
        header: Header of a model.
        image_options: Any of `img_size` (height, width), `mean` and `std`. Mean and standard deviation have a
            single number or a number per channel.
        place: Name of the model in messages.

    Raises:
        UsageError: If the model reads texts, or has another number of channels.
    """
    preprocess = header.preprocess
    if not image_options:
        return header
    if not isinstance(preprocess, Preprocess):
        raise UsageError(
            f"`{long_option(next(iter(image_options)))}` is for images, but {place} reads texts",
            hint="leave it out",
        )
    channels = preprocess.input_size[0]
    update: dict[str, object] = {}
    for name in ("mean", "std"):
        values: tuple[float, ...] | None = image_options.get(name)
        if values is None:
            continue
        if len(values) not in {1, channels}:
            raise UsageError(
                f"`--{name}`: {len(values)} numbers, but {place} reads images with {counted(channels, 'channel')}",
                hint="give one number for all channels, or one per channel",
            )
        update[name] = values * channels if len(values) == 1 else values
    if "img_size" in image_options:
        update["input_size"] = (channels, *image_options["img_size"])
    says_statistics = {"mean", "std"} <= image_options.keys()
    return header.model_copy(
        update={
            "preprocess": preprocess.model_copy(update=update),
            "assumed": header.assumed and not says_statistics,
        }
    )


def check_image_size(header: Header, *, place: str) -> None:
    """Check that a model accepts images of the size in its header.

    Args:
        header: Header of the model after `override_preprocessing`.
        place: Name of the model in messages.

    Raises:
        UsageError: If the model does not accept images of this size.
    """
    from hydractl.families.open_model import takes_images  # noqa: PLC0415 - the options of commands load no torch

    preprocess = header.preprocess
    if isinstance(preprocess, Preprocess) and not takes_images(header):
        _, height, width = preprocess.input_size
        raise UsageError(
            f"`--img-size`: {place} does not accept images of {height}x{width} pixels",
            hint="leave it out; for random weights and bare files of timm models use `NAME::img_size=N`",
        )


def warn_of_folder(model_file: OpenModel) -> None:
    """Warn about unexpected settings in the folder of a library's model."""
    for note in model_file.notes:
        progress.warn(f"{model_file.reference}: {note}")


def warn_assumed(model_file: OpenModel) -> None:
    """Warn about unexpected settings in a model's folder, and about assumed preprocessing of images."""
    warn_of_folder(model_file)
    preprocess = model_file.header.preprocess
    if not model_file.header.assumed or not isinstance(preprocess, Preprocess):
        return
    _, height, width = preprocess.input_size
    mean, std = (",".join(f"{x:.4g}" for x in values) for values in (preprocess.mean, preprocess.std))
    progress.warn(
        f"{model_file.reference}: its image preprocessing is assumed, the usual one of such models: "
        f"{height}x{width} pixels, {preprocess.interpolation}, crop {preprocess.crop_pct:g}, mean {mean}, std {std} (change it with "
        "`--img-size`, `--mean` and `--std` of `finetune` and `import`)"
    )


def open_reader(
    reference: str,
    *,
    arch: str | None = None,
    seed: int = 0,
    max_length: int | None = None,
    reads_data: bool = True,
) -> OpenModel:
    """Open a model and limit its texts to `max_length` tokens.

    Args:
        reference: MODEL reference; see `hydractl.model_source`.
        arch: Architecture of a bare file.
        seed: Seed of random weights.
        max_length: Maximum length of texts in tokens, at most the limit of the model. None uses the limit of
            the model.
        reads_data: Whether the model will run on data.

    Raises:
        CheckpointError: If the checkpoint is missing or malformed, or a text model has no tokenizer.
        UsageError: If `max_length` is given for an image model, or is larger than the limit of the model.
    """
    model_file = open_model(reference, arch=arch, seed=seed)
    if reads_data:
        check_readable_by(model_file.header.preprocess, model=reference)
    preprocess = with_max_length(model_file.header.preprocess, max_length, model=reference)
    return replace(model_file, header=model_file.header.model_copy(update={"preprocess": preprocess}))


def open_sets(
    model_file: OpenModel, references: Mapping[str, str | DataRef | None], *, workers: int | None
) -> dict[str, Dataset]:
    """Open data sets for a model, by role. Warn about assumed preprocessing and mixed dtypes of the model.

    Args:
        model_file: The model.
        references: Data references by role; roles with None are left out.
        workers: Number of processes that decode images; see `open_items`.

    Raises:
        CheckpointError: If the model has no tokenizer for its texts.
        DataError: If a data set cannot be opened.
    """
    preprocess = model_file.header.preprocess
    references_given = {role: reference for role, reference in references.items() if reference is not None}
    if references_given:
        check_readable_by(preprocess, model=model_file.reference)
        warn_of_model(model_file)
    return {
        role: open_items(reference, preprocess, workers=workers)
        for role, reference in references_given.items()
    }


def warn_of_model(model_file: OpenModel) -> None:
    """Warn about assumed preprocessing, and about mixed dtypes of the weights."""
    warn_assumed(model_file)
    # the dtype for computation is chosen in `in_one_dtype`
    specs, exact = model_file.checkpoint.specs, model_file.family.exact
    stored = sorted({spec.dtype for name, spec in specs.items() if spec.is_floating and name not in exact})
    if len(stored) > 1:
        progress.warn(
            f"{model_file.reference}: its weights are stored as {quoted(stored)}; it runs in the smallest data "
            "type that can represent all of them (change it with `--dtype`)"
        )


def labels_of(
    model_file: OpenModel,
    dataset: Dataset,
    classes: Classes | None,
    *,
    option: str = "--data",
    hint: str = LABELS_HINT,
) -> tuple[torch.Tensor, int]:
    """Return the labels of a data set as class indices of a model, and the number of classes.

    Args:
        model_file: The model.
        dataset: The data.
        classes: Classes of a zero-shot model, or None.
        option: Option with the data reference, for messages.
        hint: Advice for data without labels.

    Returns:
        Labels (S,) for S samples, or (S, Q) for Q labels or words, int64, negative for padding words; number
        of classes.

    Raises:
        DataError: If the data have no labels, or labels that do not fit the model.
    """
    architecture = model_file.header.architecture
    check_labels(dataset, option, task=architecture.task, hint=hint)
    names = classes.names if classes else model_file.header.labels
    count = len(names) if classes else model_file.header.num_classes
    by_text = model_file.header.prompting is not None
    called = "the data" if option == "--data" else f"`{option} {dataset.name}`"
    table = match_classes(dataset, names, num_classes=count, by_text=by_text, data_name=called)
    return model_labels(dataset, table, option, architecture=architecture), count


def digests(dataset: Dataset, team: ProcessGroup) -> Iterator[bytes]:
    """Yield the digest of every item in order, in every process; see `Dataset.item_digest`.

    Each process reads its share of the items, and the processes exchange the digests.

    Raises:
        DataError: If an item cannot be read.
    """
    read = b"".join(map(dataset.item_digest, range(team.rank, len(dataset), team.world)))
    local_digests = torch.from_numpy(np.frombuffer(read, dtype=np.uint8).copy())
    shares = [share.numpy().tobytes() for share in team.in_order([local_digests])]
    size = sha256().digest_size + SAMPLE_BYTES
    for i in range(len(dataset)):
        place, share = divmod(i, team.world)
        yield shares[share][place * size : (place + 1) * size]


def identify(dataset: Dataset, item_digests: Iterable[bytes]) -> tuple[str, np.ndarray]:
    """Return the fingerprint of a data set, and the digests of its samples.

    Args:
        dataset: The data.
        item_digests: Digests of all items.

    Returns:
        Fingerprint, and sample digests of type `DIGEST`, shape (S,).
    """
    read = [*item_digests]
    return dataset.fingerprint(read), samples_in([read[i] for i in dataset.firsts])


class Identity(NamedTuple):
    """Fingerprint of a data set, and the digests of its samples, type `DIGEST`, shape (S,)."""

    fingerprint: Fingerprint
    content: np.ndarray

    @classmethod
    def of(cls, dataset: Dataset, team: ProcessGroup) -> Self:
        """Read a data set. Each process reads its share.

        Raises:
            DataError: If an item cannot be read.
        """
        sha256, content = identify(dataset, digests(dataset, team))
        return cls(Fingerprint(reference=dataset.name, sha256=sha256, count=dataset.total), content)

    def as_input(self) -> SampledFile:
        """Return the provenance entry of the data set."""
        reference, sha256 = self.fingerprint.reference, self.fingerprint.sha256
        return SampledFile(name=reference, sha256=sha256, samples=pack_digests(self.content))


def data_input(dataset: Dataset, team: ProcessGroup, indices: torch.Tensor | None = None) -> SampledFile:
    """Return the provenance entry of a data set.

    Args:
        dataset: The data.
        team: The processes. Each process reads its share.
        indices: Indices of items (N',). If given, the entry has their digests instead of the digests of all
            samples.

    Raises:
        DataError: If an item cannot be read.
    """
    read = [*digests(dataset, team)]
    sha256, content = identify(dataset, read)
    content = content if indices is None else samples_in([read[i] for i in indices])
    return SampledFile(name=dataset.name, sha256=sha256, samples=pack_digests(content))


def overlap(option: str, content: np.ndarray, second: str, other_content: np.ndarray) -> str | None:
    """Return a clause on the number of samples in both of two data sets; None without common samples.

    For example "3 of 10 samples of `--val` are also in `--train`".

    Args:
        option: Option with the first data set, whose samples are counted.
        content: Digests of its samples, type `DIGEST`.
        second: Option with the second data set.
        other_content: Digests of its samples.
    """
    count = int(np.isin(content, other_content).sum())
    if count == len(content) == len(other_content):
        return f"`{option}` and `{second}` have the same samples"
    return f"{count} of {len(content)} samples of `{option}` are also in `{second}`" if count else None
