"""Predictions of a model on the batches of a data set, without gradients, in the order of the data.

Axes: M members, B batch, N samples, C classes, Q labels or words, S scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from hydractl import progress
from hydractl.data.batches import ALL_BATCHES, CACHE_BYTES, Batch, BatchShare, eval_batches
from hydractl.data.datasets import Dataset, ItemPreprocess
from hydractl.errors import InputError
from hydractl.families.finite import NOT_FINITE
from hydractl.manifest.header import MOST_MEMBERS
from hydractl.metrics.per_sample import Responses, StoredPredictions
from hydractl.model_inputs import Inputs, batch_of, inputs_like, mask_absent_words
from hydractl.output.scratch import HELD_BYTES, ROOM_HINT, ScratchFile
from hydractl.runtime import on_cpu

DISK_HINT = f"{ROOM_HINT}, or write the outputs there"


class Runnable(Protocol):
    """Interface of a model for inference. A model on another runtime can implement it."""

    @property
    def device(self) -> torch.device:
        """Device of the model's inputs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's inputs."""
        ...

    def outputs(self, inputs: Inputs) -> Sequence[torch.Tensor]:
        """Return each member's logits (M, B, C), and other outputs (A, B, ...), for inputs (B, ...)."""
        ...


def respond(model: Runnable, inputs: Inputs, *, name: str, data: str) -> tuple[torch.Tensor, ...]:
    """Return the predictions of each member on a batch. The device is synchronized only once.

    Args:
        model: In evaluation mode, on its device and in its dtype.
        inputs: Inputs on any device.
        name: Name of the model for errors.
        data: Name of the data for errors.

    Returns:
        Tensors on the CPU in float32: log-softmax of the logits (M, B, C), logsumexp of the logits (M, B),
            and the model's other outputs. For a multi-label model, (M, B, Q, 2) and (M, B, Q). For a model
            with predictions per word, (M, B, Q, C) and (M, B, Q), with NaN for missing words of shorter
            texts.

    Raises:
        InputError: If a logit is not finite, or the device has too little memory.
    """
    try:
        with torch.inference_mode():
            like = torch.empty(0, device=model.device, dtype=model.dtype)
            logits, *others = (output.float() for output in model.outputs(inputs_like(inputs, like)))
            log_probs, logsumexp = logits.log_softmax(-1), logits.logsumexp(-1)
            # Differences of logits and sums over members must be finite too.
            finite = log_probs.isfinite().all() & (MOST_MEMBERS * logsumexp).isfinite().all()
            finite, log_probs, logsumexp, *others = on_cpu(finite, log_probs, logsumexp, *others)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"{name}: the device has too little memory for {batch_of(inputs)} samples at once",
            hint="use a smaller `--batch-size`",
        ) from error
    if not finite:
        raise InputError(
            f"{name}: has logits that are not finite on `{data}`",
            hint=NOT_FINITE,
        )
    return mask_absent_words(log_probs, inputs), mask_absent_words(logsumexp, inputs), *others


def responses(
    model: Runnable, batches: Iterable[Batch[Inputs]], *, name: str, data: str
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield a tuple for each batch: item indices (B,), then the outputs of `respond`; arguments as there."""
    for batch in batches:
        yield batch.indices, *respond(model, batch.inputs, name=name, data=data)


@dataclass(frozen=True, slots=True, eq=False)
class PredictionFile:
    """Predictions with log-probabilities in a file. Memory holds only a chunk of the file.

    Attributes:
        log_probs: The file, shape (M, N, ...).
        logsumexp: Logsumexp of the logits, shape (M, N) or (M, N, Q).
        chosen: Members of this view.
        scores: OOD scores (N,) by name; see `StoredPredictions`.
    """

    log_probs: ScratchFile
    logsumexp: torch.Tensor
    chosen: slice
    scores: Mapping[str, torch.Tensor]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the log-probabilities: M, N and C; or M, N, Q and C."""
        return len(self.logsumexp[self.chosen]), *self.log_probs.shape[1:]

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member separately, M = 1, without OOD scores."""
        for m in range(len(self.logsumexp))[self.chosen]:
            yield replace(self, chosen=slice(m, m + 1), scores={})

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, with at most `samples` samples at a time, without OOD scores."""
        for begin in range(0, self.shape[1], samples):
            part = self.chosen, slice(begin, begin + samples)
            yield Responses(self.log_probs.tensor()[part].clone(), self.logsumexp[part])


def collected(
    batches: Iterable[Sequence[torch.Tensor]],
    *,
    count: int,
    folder: Path | None = None,
    names: Sequence[str] = (),
) -> StoredPredictions:
    """Collect the predictions on all N samples in the order of the data.

    If there is a folder and the log-probabilities need more than `HELD_BYTES`, they are stored in an unnamed
    file.

    Args:
        batches: Indices (B,) of items, predictions (M, B, ...) and optional scores (1, B, S) of batches in
            any order; see `responses`.
        count: Number of samples N.
        folder: Folder of the file. None keeps all predictions in memory.
        names: Names of the S scores.

    Raises:
        ValueError: If predictions on some samples are missing.
        OutputError: If the disk has too little space.
    """
    tensors: list[torch.Tensor] = []
    file, stored = None, 0
    for indices, log_probs, logsumexp, *scores in batches:
        parts = [log_probs, logsumexp, *(part.double() for part in scores)]
        if not tensors:
            shapes = [(len(part), count, *part.shape[2:]) for part in parts]
            if folder is not None and log_probs.element_size() * math.prod(shapes[0]) > HELD_BYTES:
                name = f"the predictions on {count} samples"
                file = ScratchFile(shapes[0], folder, name=name, until="they are measured", hint=DISK_HINT)
                shapes[0] = (0,)
            tensors = [part.new_empty(shape) for part, shape in zip(parts, shapes, strict=True)]
        targets = tensors if file is None else [file.tensor(), *tensors[1:]]
        for tensor, part in zip(targets, parts, strict=True):
            tensor[:, indices] = part
        stored += len(indices)
    if stored != count:
        raise ValueError(f"{stored} of {count} items were read")
    columns = tensors[2].squeeze(0).unbind(1) if tensors[2:] else ()
    by_name = dict(zip(names, columns, strict=True)) if columns else {}
    if file is None:
        return Responses(tensors[0], tensors[1], by_name)
    return PredictionFile(file, tensors[1], slice(None), by_name)


@contextmanager
def memory_guard(name: str, device: torch.device, *, hint: str = "use `--device cpu`") -> Iterator[None]:
    """Convert an out-of-memory error of the device in the `with` block to an InputError with a hint.

    Args:
        name: Name of the model for errors.
        device: The device.
        hint: Advice for the user.

    Raises:
        InputError: If the model does not fit into the memory of the device.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(f"{name}: does not fit into the memory of {device}", hint=hint) from error


class PreparedData:
    """Batches of a data set. Models with equal preprocessing share cached batches."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        limit_bytes: int = CACHE_BYTES,
        name: str | None = None,
        batch_share: BatchShare = ALL_BATCHES,
    ) -> None:
        """Store the settings. No items are read yet.

        Args:
            dataset: The images or texts.
            batch_size: At least 1.
            limit_bytes: Memory limit of cached inputs. With 0, items are decoded again for each model.
            name: Name of the data set in messages; default: the name of `dataset`.
            batch_share: Share of the batches of this process.
        """
        self.dataset = dataset
        self.batch_size = batch_size
        self.limit_bytes = limit_bytes
        self.name = name or dataset.name
        self.batch_share = batch_share
        self._held: tuple[ItemPreprocess, Iterable[Batch[Inputs]]] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def of(self, dataset: Dataset, *, name: str) -> PreparedData:
        """Return the batches of another data set with the same settings, without a cache."""
        return PreparedData(
            dataset, batch_size=self.batch_size, limit_bytes=0, name=name, batch_share=self.batch_share
        )

    def tracked(self, preprocess: ItemPreprocess, name: str) -> Iterable[Batch[Inputs]]:
        """Return the batches for a model, with a progress bar. `name` is the name of the model in the bar."""
        total = len(range(self.batch_share.rank, -(-len(self) // self.batch_size), self.batch_share.of))
        return progress.track(self.batches(preprocess), label=f"{name} on {self.name}", total=total)

    def batches(self, preprocess: ItemPreprocess) -> Iterable[Batch[Inputs]]:
        """Return the batches for a model's preprocessing, in any order; raises the errors of `eval_batches`."""
        if self._held is None or self._held[0] != preprocess:
            self._held = None  # free the old batches first, so that only a single cache is in memory
            batches_of_set = eval_batches(
                self.dataset,
                preprocess,
                batch_size=self.batch_size,
                limit_bytes=self.limit_bytes,
                batch_share=self.batch_share,
            )
            self._held = (preprocess, batches_of_set)
        return self._held[1]
