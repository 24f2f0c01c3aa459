"""Predictions of models on data sets, their temperature scaling, and the fit of feature-based OOD scores.

Axes: M members, B batch, N samples, C classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import CACHE_BYTES, EVERY_BATCH, Batch, BatchShare
from hydractl.data.datasets import Items
from hydractl.data.encode import Reading, encoded
from hydractl.data.words import WordSet
from hydractl.errors import DataError, InputError
from hydractl.families.base import Family
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.feature_ood import FeatureExtractor, Predictor, Scores, fit_scores
from hydractl.fusion.inference import collected
from hydractl.manifest.document import Value
from hydractl.manifest.header import Header
from hydractl.manifest.temperature import LARGEST, SMALLEST, Temperature
from hydractl.messages import counted
from hydractl.metrics.ood_scores import ENERGY_DENSITY, options_of
from hydractl.metrics.per_sample import Joined, Responses, StoredPredictions, in_memory
from hydractl.metrics.registry import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, Scaled, divisor, fit_temperature, shared_temperature
from hydractl.model_inputs import Inputs
from hydractl.plugins import load
from hydractl.processes.distributed import ProcessGroup
from hydractl.stages.shared.open_inputs import overlap

SINGLE_PROCESS = ProcessGroup()


@contextmanager
def fits(name: str, device: torch.device, *, hint: str = "use `--device cpu`") -> Iterator[None]:
    """Say in our words that a model does not fit into a device's memory.

    Raises:
        InputError: If that is so.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(f"{name}: does not fit into the memory of {device}", hint=hint) from error


class PreparedData:
    """A data set as model inputs, made once for models that read alike if they fit into memory."""

    def __init__(
        self,
        dataset: Items,
        *,
        batch_size: int,
        limit_bytes: int = CACHE_BYTES,
        name: str | None = None,
        deal: BatchShare = EVERY_BATCH,
    ) -> None:
        """Remember what to decode; nothing is read yet.

        Args:
            dataset: The images or texts.
            batch_size: At least 1.
            limit_bytes: How much memory decoded images may take; 0 decodes anew for each model.
            name: What messages call the set; default: its own name.
            deal: Which of the batches this process has.
        """
        self.dataset = dataset
        self.batch_size = batch_size
        self.limit_bytes = limit_bytes
        self.name = name or dataset.name
        self.deal = deal
        self._held: tuple[Reading, Iterable[Batch[Inputs]]] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def of(self, items: Items, *, name: str) -> PreparedData:
        """Return other items, read as these are but not held."""
        return PreparedData(items, batch_size=self.batch_size, limit_bytes=0, name=name, deal=self.deal)

    def tracked(self, preprocess: Reading, name: str) -> Iterable[Batch[Inputs]]:
        """Return the batches that a model of some name takes, and let progress see them pass."""
        total = len(range(self.deal.rank, -(-len(self) // self.batch_size), self.deal.of))
        return progress.track(self.batches(preprocess), label=f"{name} on {self.name}", total=total)

    def batches(self, preprocess: Reading) -> Iterable[Batch[Inputs]]:
        """Return the batches that a model with this preprocessing takes, in any order; raises as `encoded` does."""
        if self._held is None or self._held[0] != preprocess:
            self._held = None  # two sets of inputs never lie in memory together
            batches_of_set = encoded(
                self.dataset,
                preprocess,
                batch_size=self.batch_size,
                limit_bytes=self.limit_bytes,
                deal=self.deal,
            )
            self._held = (preprocess, batches_of_set)
        return self._held[1]


def predict(predictor: Predictor, inputs: PreparedData, *, team: ProcessGroup = SINGLE_PROCESS) -> Responses:
    """Return the predictions of a model's members on a data set, in memory, in every process.

    Args:
        predictor: The model.
        inputs: The data; each process has a share of the batches.
        team: The processes.

    Raises:
        InputError: As for `respond`.
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or invalid.
    """
    return in_memory(collected(_batches(predictor, inputs, team), count=len(inputs)))


def predict_together(
    row: Sequence[Predictor], inputs: PreparedData, *, team: ProcessGroup, folder: Path
) -> StoredPredictions | None:
    """Return the predictions of all members of all models of a row on a data set in the first process, None in the others.

    Predictions on windows of a text become predictions on the text.

    Args:
        row: The models.
        inputs: The data; each process has a share of the batches.
        team: The processes.
        folder: Folder for predictions that are too large for memory, see `collected`.

    Raises:
        InputError: As for `predict`.
        DataError: As for `predict`.
        CheckpointError: As for `predict`.
        OutputError: If the disk has no room for the predictions.
    """
    windows = inputs.dataset
    parts: list[StoredPredictions] = []
    for predictor in row:
        batches = _batches(predictor, inputs, team)
        if not team.leads:
            deque(batches, maxlen=0)
            continue
        part = collected(batches, count=len(inputs), folder=folder, names=predictor.score_names)
        if isinstance(windows, WordSet) and windows.documents:
            part = in_memory(part).mapped(windows.by_document)
        parts.append(part)
    return Joined(tuple(parts)) if team.leads else None


def _batches(predictor: Predictor, inputs: PreparedData, team: ProcessGroup) -> Iterator[Sequence[Tensor]]:
    """Yield indices, predictions and scores of the batches of all processes."""
    batches = inputs.tracked(predictor.reads, predictor.name)
    return team.iterate(predictor.responses(batches, data=inputs.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Which temperature a row has: what all its logits are divided by, on top of what its checkpoints store.

    Attributes:
        temperature: None leaves the predictions as they are.
        fitted_on: How many samples; None if it was given.
    """

    temperature: Temperature | None = None
    fitted_on: int | None = None

    @classmethod
    def fit(
        cls,
        predictions: StoredPredictions,
        labels: Tensor,
        *,
        row: str,
        header: Header,
        stored: Sequence[Temperature] = (),
    ) -> Self:
        """Return the scaling that is likeliest after a held-out split, and warn if a bound of the search is it.

        Args:
            predictions: There, by every member.
            labels: Shape (N,), or (N, Q), in 0..C-1.
            row: What messages call the model.
            header: Says the task, which may have temperatures of its own, and the names of the classes.
            stored: The temperatures of the row's checkpoints, as in `values`.
        """
        before = shared_temperature(stored)
        common = Temperature(before.common, of_entities=before.of_entities)
        if before.by_label:  # temperatures of labels are fitted anew, on logits that one divides
            predictions = Scaled(predictions, divisor(common / before))
        fitted = fit_temperature(predictions, labels, stored=common.common)
        temperature, scale = fitted.temperature, Temperature(fitted.temperature)
        if fit := header.architecture.task.temperature:
            scale = load(fit)(predictions, labels, temperature, header, common)
        progress.step(f"{row}: temperature {temperature:.4f}, fitted on {counted(len(labels), 'sample')}")
        if fitted.at_bound:
            progress.warn(
                f"{row}: the fitted temperature is {temperature:g}, a bound of the search ({LOWEST:g} to "
                f"{HIGHEST:g}): check that the labels fit the model; the scale of its logits may be unusual"
            )
        scale = common * scale / before if before.by_label else scale
        return cls(temperature=scale, fitted_on=len(labels))

    def __call__(self, predictions: StoredPredictions) -> StoredPredictions:
        """Return what every member says once its logits are scaled, float32."""
        if self.temperature is None:
            return predictions
        return Scaled(predictions, divisor(self.temperature))

    def on_top_of(self, stored: Sequence[Temperature]) -> Temperature:
        """Return what logits are divided by in all; where the temperatures of a row's checkpoints differ, without them.

        Raises:
            InputError: If no checkpoint may store the result.
        """
        before = shared_temperature(stored)
        total = before if self.temperature is None else before * self.temperature
        if not all(SMALLEST <= number <= LARGEST for number in total.numbers):
            raise InputError(
                f"the stored temperature {before} and the temperature {self.temperature} multiply to {total}, which is outside "
                f"{SMALLEST:g} to {LARGEST:g}",
                hint="give `--temperature` another value, or leave it out",
            )
        return total

    def values(self, stored: Sequence[Temperature]) -> dict[str, Value]:
        """Return what a report says of it.

        Args:
            stored: The temperatures of the row's checkpoints; where they differ, only what they share is said.
        """
        temperature = self.on_top_of(stored)
        if self.temperature is None and temperature == Temperature():
            return {}
        return {TEMPERATURE: Value(value=temperature.common, count=self.fitted_on)}


class FitOn(NamedTuple):
    """Training data.

    Attributes:
        inputs: The data; each process has a share of the batches.
        labels: Shape (N,), the model's classes.
        held_out: Held-out ID data; None if no score needs them.
    """

    inputs: PreparedData
    labels: Tensor
    held_out: PreparedData | None = None


def inputs_of(items: Items, *, name: str, batch_size: int, team: ProcessGroup) -> PreparedData:
    """Return a data set that is read once."""
    deal = BatchShare(team.rank, team.world)
    return PreparedData(items, batch_size=batch_size, limit_bytes=0, name=name, deal=deal)


def overlap_of_val(val: np.ndarray, training: np.ndarray) -> str | None:
    """Return a warning if samples of `--val` are in `--fit`, given digests of their items as `DIGEST`; else None."""
    shared = overlap("--val", val, "--fit", training)
    return (
        shared
        and f"{shared}: `{ENERGY_DENSITY}` is standardized as if all inputs were as close as training data"
    )


def with_ood_scores(
    model: Towers, opened: OpenModel, scores: Sequence[str], on: FitOn | None, team: ProcessGroup
) -> Predictor:
    """Return a model with its feature-based OOD scores.

    Args:
        model: The model in evaluation mode, on its device.
        opened: Its checkpoint.
        scores: Names of the scores, which may be none.
        on: Training data to fit the scores on; None for the scores that the checkpoint stores.
        team: The processes.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
        CheckpointError: If stored scores are invalid.
    """
    predictor = Predictor(model=model, name=opened.reference, reads=opened.header.preprocess)
    if not scores:
        return predictor
    if on is None:
        fitted = Scores.stored(opened.checkpoint, opened.header, scores=scores, name=opened.reference)
    else:
        fitted = fit_on(predictor, opened.family, scores, on, team)
    return predictor.with_scores(fitted, opened.family)


def fit_on(
    predictor: Predictor, family: Family, scores: Sequence[str], on: FitOn, team: ProcessGroup
) -> Scores:
    """Fit scores in one pass over the data; see `fit_scores`.

    Args:
        predictor: The model.
        family: Its family.
        scores: As in `fit_scores`.
        on: The data.
        team: The processes.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
    """
    name, reads = predictor.name, predictor.reads
    extractor = FeatureExtractor.of(predictor.model, family, name=name)
    if on.labels.ndim > 1:
        raise DataError(
            f"{name}: feature-based OOD scores compare classes of inputs, which have one label each",
            hint="use OOD scores of logits, such as energy",
        )
    batches, held_out = (
        () if inputs is None else inputs.tracked(reads, name) for inputs in (on.inputs, on.held_out)
    )
    fitted = fit_scores(extractor, scores, (batches, on.labels), held_out, name=name, team=team)
    for warning in _doubts(scores, on.labels, extractor.width):
        progress.warn(f"{name}: {warning}")
    return fitted


def _doubts(scores: Sequence[str], labels: Tensor, width: int) -> Iterator[str]:
    """Yield warnings about scores that need more training data."""
    fewest = int(labels.unique(return_counts=True)[1].min())
    for score in scores:
        options = options_of(score)
        if options.get("alpha") == 0 and len(labels) - len(labels.unique()) < width:
            yield (
                f"{len(labels)} samples to fit `{score}` on are too few for {width} features, so directions in "
                "which they do not vary are ignored"
            )
        if (options.get("k") or 0) > fewest:
            yield (
                f"`{score}` uses more neighbours than the {fewest} samples of a class, so it also measures "
                "distances to other classes"
            )
