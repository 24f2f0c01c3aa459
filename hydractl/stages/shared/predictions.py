"""What models say about data, and how it is scaled.

Axes: M members, B batch, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from hydractl.data.batches import CACHE_BYTES, EVERY_BATCH, Batch, BatchShare
from hydractl.data.datasets import Items
from hydractl.data.encode import Reading, encoded
from hydractl.data.words import WordSet
from hydractl.errors import InputError
from hydractl.families.tower import Towers
from hydractl.fusion.feature_ood import WithOodScores
from hydractl.fusion.inference import gathered, responses
from hydractl.manifest.document import Value
from hydractl.manifest.header import Header
from hydractl.manifest.temperature import LARGEST, SMALLEST, Temperature
from hydractl.messages import counted
from hydractl.metrics.per_sample import Responses, Scored, StoredPredictions, in_memory, together
from hydractl.metrics.registry import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, Scaled, divisor, fit_temperature, shared_temperature
from hydractl.model_inputs import Inputs
from hydractl.plugins import load
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import SILENT, Progress
from hydractl.stages.shared.prediction_store import Filled, PredictionStore

Predictor = Towers
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

    @property
    def count(self) -> int:
        """How many items there are."""
        return len(self)

    def parts(self) -> Iterator[tuple[int, PreparedData]]:
        """Yield all of it."""
        yield 0, self

    def of(self, items: Items, *, name: str) -> PreparedData:
        """Return other items, read as these are but not held."""
        return PreparedData(items, batch_size=self.batch_size, limit_bytes=0, name=name, deal=self.deal)

    def tracked(self, preprocess: Reading, name: str, progress: Progress) -> Iterable[Batch[Inputs]]:
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


def predict(
    model: Predictor,
    inputs: PreparedData,
    preprocess: Reading,
    *,
    name: str,
    team: ProcessGroup = SINGLE_PROCESS,
    progress: Progress = SILENT,
) -> Responses:
    """Return what each of a model's members says of a whole data set, in every process.

    Memory holds one batch of each process beside the result (and what `inputs` holds).

    Args:
        model: In evaluation mode, on the device and in the dtype that it shall run in.
        inputs: The data.
        preprocess: From the model's header.
        name: What errors call the model.
        team: Who has the other batches, if `inputs` are but some.
        progress: Sees the batches pass.

    Returns:
        As `respond_to_all`.

    Raises:
        InputError: As `respond_to_all`.
        DataError: Likewise.
        CheckpointError: If the model's tokenizer is missing or unfit.
    """
    local_responses = responses(
        model, inputs.tracked(preprocess, name, progress), name=name, data=inputs.name
    )
    return gathered(team.iterate(local_responses), count=len(inputs), data=inputs.name)


class Keeping(NamedTuple):
    """Who predicts together, and in which folder what they say is kept where memory is not the place; None for any."""

    team: ProcessGroup
    folder: Path | None


class NamedPredictor(NamedTuple):
    """A model, perhaps beside scores of its features, how it reads, and what errors call it."""

    model: Predictor | WithOodScores
    reads: Reading
    name: str


class Parted(Protocol):
    """A data set that is gone over part by part, as a `PreparedData` is in one."""

    @property
    def count(self) -> int | None:
        """How many items there are; None where nobody knows yet."""

    def parts(self) -> Iterator[tuple[int, PreparedData]]:
        """Yield the place of each part's first item, and it, of which this process has its batches; every process all."""


def predict_together(
    row: Sequence[NamedPredictor], inputs: Parted, keeping: Keeping, *, progress: Progress = SILENT
) -> StoredPredictions | None:
    """Return what all members of all models of a row say of a data set, in the process that leads; in the others None.

    Memory holds a batch of each process at most, a part of what comes in parts, and what a `PredictionStore` holds of each model.

    Args:
        row: The models, which are asked in turn about each part.
        inputs: The data, of which each process has its batches.
        keeping: Who predicts, and where it goes.
        progress: Sees this process's batches pass.

    Raises:
        InputError: As `predict`.
        DataError: Likewise.
        CheckpointError: Likewise.
        OutputError: If there is no room for the predictions.
    """
    collectors = [_ResponseCollector(model_of_row, inputs.count, keeping) for model_of_row in row]
    for begin, part in inputs.parts():
        for collector in collectors:
            collector.ask(part, begin, progress)
    return together([collector.stored() for collector in collectors]) if keeping.team.leads else None


class _ResponseCollector:
    """What one model says of a data set, as it comes."""

    def __init__(self, model_of_row: NamedPredictor, count: int | None, keeping: Keeping) -> None:
        self._asked, self._team = model_of_row, keeping.team
        self._spool = PredictionStore(count, keeping.folder)
        self._scores = Filled(count)
        self._names: list[str] = []
        self._windows: WordSet | None = None
        if isinstance(model_of_row.model, WithOodScores):
            self._names = [*model_of_row.model.names]
        else:
            self._names = [*getattr(model_of_row.model, "own_scores", ())]

    def ask(self, part: PreparedData, begin: int, progress: Progress) -> None:
        """Ask the model about a part of the data, whose first item is item `begin`."""
        model, reads, name = self._asked
        items = part.dataset
        self._windows = items if isinstance(items, WordSet) and items.documents else None
        batches = part.tracked(reads, name, progress)
        if isinstance(model, WithOodScores):
            local_responses = model.responses(batches, name=name, data=part.name)
        else:
            local_responses = responses(
                model,
                batches,
                name=name,
                data=part.name,
                extra_outputs=getattr(model, "extra_outputs", tuple),
            )
        for indices, log_probs, logsumexp, *scored in self._team.iterate(local_responses):
            if self._team.leads:
                self._spool.store(indices + begin, Responses(log_probs, logsumexp))
                for scores in scored:
                    self._scores.store(indices + begin, scores.double())

    def stored(self) -> StoredPredictions:
        """Return all of it; of texts that were read in windows, what is said of the whole texts."""
        predictions = self._spool.stored()
        if self._windows is not None:
            return in_memory(predictions).mapped(self._windows.by_document)
        if not self._names:
            return predictions
        scores = self._scores.all().squeeze(0)
        return Scored(predictions, dict(zip(self._names, scores.unbind(1), strict=True)))


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
        progress: Progress,
        header: Header,
        stored: Sequence[Temperature] = (),
    ) -> Self:
        """Return the scaling that is likeliest after a held-out split, and warn if a bound of the search is it.

        Args:
            predictions: There, by every member.
            labels: Shape (N,), or (N, Q), in 0..C-1.
            row: What messages call the model.
            progress: Hears the result.
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
        if isinstance(predictions, Scored):  # they are of the model as it is stored
            return Scored(Scaled(predictions.predictions, divisor(self.temperature)), predictions.scores)
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
