"""A model together with how it reads data in this run, and what it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch

from hydractl.data.batches import Batch
from hydractl.data.datasets import Items
from hydractl.data.decoding import SAMPLE_BYTES
from hydractl.data.encode import check_reads, limited, open_items
from hydractl.data.labels import check_labels, model_labels
from hydractl.data.matching import match_classes
from hydractl.data.reference import DataRef
from hydractl.data.sources.stream import samples_in
from hydractl.families.load import OpenModel, open_model
from hydractl.manifest.document import pack
from hydractl.manifest.header import SampledFile
from hydractl.messages import quoted
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.runtime import on_device
from hydractl.scoring.job import Samples
from hydractl.stages.shared.image_preprocessing import warn_assumed
from hydractl.stages.shared.zero_shot_classes import Classes


def open_reader(
    reference: str,
    *,
    arch: str | None = None,
    seed: int = 0,
    max_length: int | None = None,
    reads: bool = True,
) -> OpenModel:
    """Open a model whose header says what it reads in this run: texts of `max_length` tokens at most.

    Args:
        reference: See `hydractl.model_source`.
        arch: Architecture of a bare file.
        seed: Of random weights.
        max_length: No more than the model's own; None for that.
        reads: Whether it will be shown any data.

    Raises:
        CheckpointError: If it is missing or malformed, or reads texts and has no tokenizer.
        UsageError: If there are no texts to cut, or the model reads fewer tokens.
    """
    opened = open_model(reference, arch=arch, seed=seed)
    if reads:
        check_reads(opened.header.preprocess, model=reference)
    how = limited(opened.header.preprocess, max_length, model=reference)
    return replace(opened, header=opened.header.model_copy(update={"preprocess": how}))


def open_sets(
    opened: OpenModel,
    references: Mapping[str, str | DataRef | None],
    progress: Progress,
    *,
    workers: int | None,
) -> dict[str, Items]:
    """Open the data that are given, by role, as the model reads them; `workers` as `open_items` has them.

    Raises:
        CheckpointError: If the model can read none.
        DataError: If a set cannot be opened.
    """
    how = opened.header.preprocess
    references_given = {role: reference for role, reference in references.items() if reference is not None}
    if references_given:
        check_reads(how, model=opened.reference)
        warn(opened, progress)
    return {
        role: open_items(reference, how, workers=workers, progress=progress)
        for role, reference in references_given.items()
    }


def warn(opened: OpenModel, progress: Progress) -> None:
    """Say what is taken for granted of a model that is about to run: how it reads images, and in which dtype it computes."""
    warn_assumed(opened, progress)
    # see `in_one_dtype`
    specs, exact = opened.checkpoint.specs, opened.family.exact
    stored = sorted({spec.dtype for name, spec in specs.items() if spec.is_floating and name not in exact})
    if len(stored) > 1:
        progress.warn(
            f"{opened.reference}: its weights are stored as {quoted(stored)}; it runs in the smallest data "
            "type that can represent all of them (change it with `--dtype`)"
        )


def labels_of(
    opened: OpenModel, items: Items, classes: Classes | None, progress: Progress, *, option: str = "--data"
) -> tuple[torch.Tensor, int]:
    """Return the labels (S,), or (S, Q) of Q labels, of what an option names as the model counts classes, and how many classes that are.

    Args:
        opened: The model.
        items: The data.
        classes: What a zero-shot model is asked about.
        progress: Hears how classes were matched.
        option: What names the data, for messages.

    Raises:
        DataError: If there are none, or they do not fit the model.
    """
    architecture = opened.header.architecture
    check_labels(items, option, task=architecture.task)
    names = classes.names if classes else opened.header.labels
    count = len(names) if classes else opened.header.num_classes
    by_text = opened.header.prompting is not None
    table = match_classes(items, names, num_classes=count, by_text=by_text, progress=progress)
    return model_labels(items, table, option, architecture=architecture), count


@dataclass(frozen=True, slots=True)
class RepeatedBatches:
    """Batches for a method, made anew on each pass from cached ones."""

    cached: Iterable[Batch[Inputs]]
    labels: torch.Tensor | None
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.cached:
            labels = None if self.labels is None else on_device(self.labels[batch.indices], self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)


def digests(items: Items, team: ProcessGroup) -> Iterator[bytes]:
    """Yield the digest of every item in order; each process reads its share of them.

    Raises:
        DataError: If an item cannot be read.
    """
    read = b"".join(map(items.item_digest, range(team.rank, len(items), team.world)))
    local_digests = torch.from_numpy(np.frombuffer(read, dtype=np.uint8).copy())
    shares = [share.numpy().tobytes() for share in team.in_order([local_digests])]
    size = sha256().digest_size + SAMPLE_BYTES
    for i in range(len(items)):
        place, share = divmod(i, team.world)
        yield shares[share][place * size : (place + 1) * size]


def identified(items: Items, item_digests: Iterable[bytes]) -> tuple[str, np.ndarray]:
    """Return a set's fingerprint, and the digests of its samples as `DIGEST`, (S,), given the digests of all its items."""
    read = [*item_digests]
    return items.fingerprint(read), samples_in([read[i] for i in items.firsts])


def data_input(items: Items, team: ProcessGroup, drawn: torch.Tensor | None = None) -> SampledFile:
    """Return the lineage entry of a data set, with the digests of its samples, or of the items `drawn` (N',).

    Raises:
        DataError: If an item cannot be read.
    """
    read = [*digests(items, team)]
    sha256, content = identified(items, read)
    content = content if drawn is None else samples_in([read[i] for i in drawn])
    return SampledFile(name=items.name, sha256=sha256, samples=pack(content))


def overlap(option: str, content: np.ndarray, other: str, other_content: np.ndarray) -> str | None:
    """Return how many samples of one option's data are in another's, in words; None if none are.

    Args:
        option: Names the data whose samples are counted.
        content: Digests of their items, as `DIGEST`.
        other: Names the other data.
        other_content: Digests of their items.
    """
    count = int(np.isin(content, other_content).sum())
    if count == len(content) == len(other_content):
        return f"`{option}` and `{other}` have the same samples"
    return f"{count} of {len(content)} samples of `{option}` are also in `{other}`" if count else None
