"""Predictions of models on data sets, shared by the processes of a run.

Axes: M members, N samples, C classes, Q labels or words.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from hydractl import progress
from hydractl.checkpoint import Chunks, TensorSpec, spec_of, tensor_bytes, write_checkpoint
from hydractl.data.batches import SORTED_BATCHES, Batch, BatchShare, eval_batches
from hydractl.data.datasets import Dataset, TextSet
from hydractl.data.words import Span, WordSet, by_word, whole_words
from hydractl.data.worker_pool import cores
from hydractl.errors import InputError
from hydractl.families.open_model import OpenModel
from hydractl.fusion.build import load_any
from hydractl.manifest.document import Value
from hydractl.manifest.header import Header, Tokenization
from hydractl.manifest.terms import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE, Temperature
from hydractl.messages import counted
from hydractl.metrics.per_sample import Joined, Responses, StoredPredictions, at_once, in_memory
from hydractl.metrics.registry import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, Scaled, divisor, fit_temperature, shared_temperature
from hydractl.model_inputs import Inputs
from hydractl.output.publish import Sink
from hydractl.plugins import load
from hydractl.prediction.class_names import Classes, set_classes
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.inference import PreparedData, collected, memory_guard
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import SILENT, reporting

SINGLE_PROCESS = ProcessGroup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Settings for running models on data.

    Attributes:
        batch_size: Samples per forward pass.
        workers: Number of processes that decode images. None selects a number.
        max_length: Maximum length of texts in tokens. None uses the limit of the model.
        device: Name of the device.
        team: The processes that share the batches.
    """

    batch_size: int
    workers: int | None
    max_length: int | None
    device: str
    team: ProcessGroup

    @property
    def share(self) -> BatchShare:
        """Share of the batches of this process."""
        return BatchShare(self.team.rank, self.team.world)


def load_predictors(
    model_files: Sequence[OpenModel],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    classes: Classes | None,
    hint: str = "use `--device cpu`",
) -> list[Predictor]:
    """Load the models of a table row, without OOD scores.

    Args:
        model_files: The models.
        device: Device for all models.
        dtype: Dtype for all models. None keeps the dtype of each checkpoint.
        classes: Classes of zero-shot models. None keeps the stored classes.
        hint: Advice if the models do not fit into the memory of the device.

    Raises:
        InputError: If the models do not fit into the memory of the device.
        UsageError: If prompts of two classes have the same tokens.
        CheckpointError: If the tokenizer of a zero-shot model is missing or invalid.
    """
    with memory_guard(model_files[0].reference, device, hint=hint):
        models = [load_any(model, dtype=dtype).to(device) for model in model_files]
    for model, checkpoint in zip(models, model_files, strict=True):
        set_classes(model, checkpoint, classes)
    return [
        Predictor(model=model, name=checkpoint.reference, preprocess=checkpoint.header.preprocess)
        for model, checkpoint in zip(models, model_files, strict=True)
    ]


def predict(predictor: Predictor, inputs: PreparedData, *, team: ProcessGroup = SINGLE_PROCESS) -> Responses:
    """Return the predictions of a model's members on a data set, in memory, in every process.

    Args:
        predictor: The model, without fitted OOD scores.
        inputs: The data; each process has a share of the batches.
        team: The processes.

    Raises:
        InputError: If a logit is not finite, or the device has too little memory.
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or invalid.
    """
    return in_memory(collected(_batches(predictor, inputs, team), count=len(inputs)))


def answers(
    row: Sequence[Predictor], inputs: PreparedData, *, team: ProcessGroup, folder: Path
) -> StoredPredictions | None:
    """Return the predictions of all members of all models of a row on a data set.

    Predictions on windows of a text are combined to predictions on the text.

    Args:
        row: The models.
        inputs: The data; each process has a share of the batches.
        team: The processes.
        folder: Folder for predictions that are too large for memory; see `collected`.

    Returns:
        Predictions in the first process, None in the others.

    Raises:
        InputError: If a logit is not finite, or the device has too little memory.
        DataError: If an item cannot be read.
        CheckpointError: If the model's tokenizer is missing or invalid.
        OutputError: If the disk has too little space for the predictions.
    """
    windows = inputs.dataset
    parts: list[StoredPredictions] = []
    for predictor in row:
        batches = _batches(predictor, inputs, team)
        if not team.leads:
            # The first process receives the batches of all processes, so the others must run through their
            # share.
            deque(batches, maxlen=0)
            continue
        part = collected(batches, count=len(inputs), folder=folder, names=predictor.score_names)
        if isinstance(windows, WordSet) and windows.documents:
            part = in_memory(part).mapped(windows.by_document)
        parts.append(part)
    return Joined(tuple(parts)) if team.leads else None


def _batches(predictor: Predictor, inputs: PreparedData, team: ProcessGroup) -> Iterator[Sequence[Tensor]]:
    batches = inputs.tracked(predictor.preprocess, predictor.name)
    return team.iterate(predictor.responses(batches, data=inputs.name))


LOG_PROBS, LOGSUMEXP, LABELS, SCORE_TENSORS = "log_probs", "logsumexp", "labels", "scores"


def write_predictions(
    file: Sink,
    predictions: Mapping[str, Mapping[str, StoredPredictions]],
    labels: Mapping[str, Tensor],
    *,
    with_logits: bool,
) -> None:
    """Write predictions and labels to a safetensors file; equal contents give equal bytes.

    Tensors are named `log_probs/ROW/DATA`, optionally `logsumexp/ROW/DATA`, `labels/DATA`, and
    `scores/ROW/DATA/SCORE` for feature-based OOD scores.

    Args:
        file: The output.
        predictions: Predictions by row and data set, float32, divided by the row's temperature. The ID set
            has the name `id`.
        labels: Labels of each labelled data set as class indices of the model, int64, shape (N,); (N, Q) for
            Q labels.
        with_logits: Whether to write `logsumexp`, so that logits can be recovered.
    """
    sets = {
        f"{row}/{data}": responses
        for row, by_data in predictions.items()
        for data, responses in by_data.items()
    }
    tensors = {f"{LABELS}/{data}": tensor for data, tensor in labels.items()}
    for name, responses in sets.items():
        tensors |= {f"{SCORE_TENSORS}/{name}/{score}": tensor for score, tensor in responses.scores.items()}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    for name, responses in sets.items():
        specs[f"{LOG_PROBS}/{name}"] = TensorSpec("F32", responses.shape)
        if with_logits:
            specs[f"{LOGSUMEXP}/{name}"] = TensorSpec("F32", responses.shape[:-1])

    def chunks(name: str) -> Chunks:
        kind, _, of = name.partition("/")
        return [tensor_bytes(tensors[name])] if name in tensors else _bytes(sets[of], kind)

    write_checkpoint(file, specs, chunks, header=None)


def _bytes(predictions: StoredPredictions, kind: str) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a tensor, member after member."""
    for member in predictions.members():
        for part in member.split(at_once(member)):
            tensor = part.log_probs if kind == LOG_PROBS else part.logsumexp
            yield b"" if tensor is None else tensor_bytes(tensor)


def window(batch_size: int) -> int:
    """Return how many texts are sorted by length at a time.

    With batch size 1 there is no sorting, so each answer is printed at once.
    """
    return batch_size * (SORTED_BATCHES if batch_size > 1 else 1)


AnswerBlock = tuple[range, Responses, dict[int, str], list[tuple[str, list[Span]]] | None]
"""Indices of items, predictions, error messages of unreadable items by index, and for predictions per word
the words of each text."""


def answer_blocks(
    predictor: Predictor, dataset: Dataset, size: int, team: ProcessGroup, ticks: Iterator[object]
) -> Iterator[AnswerBlock]:
    """Yield the predictions on consecutive blocks of a data set, in order, in every process.

    A block has at most `window(size)` texts, or 16 batches of images per process. The content of a batch does
    not depend on the number of processes.

    Args:
        predictor: The model, on the device of this process.
        dataset: The data.
        size: Samples per forward pass.
        team: The processes that share the batches.
        ticks: Iterator that advances after each batch of this process, for a progress bar.

    Raises:
        InputError: If a logit is not finite, or the device has too little memory.
        DataError: If an item cannot be read.
    """
    # If the model computes on all CPU cores, decoding ahead would take cores from it.
    uses_all_cores = predictor.model.device.type == "cpu" and torch.get_num_threads() >= cores()
    batch_share, preprocess = (
        BatchShare(team.rank, team.world, ahead=not uses_all_cores),
        predictor.preprocess,
    )
    stream, step = None, window(size)
    if not isinstance(dataset, TextSet):
        stream = iter(
            eval_batches(dataset, preprocess, batch_size=size, limit_bytes=0, batch_share=batch_share)
        )
        step = size * SORTED_BATCHES * team.world
    for begin in range(0, len(dataset), step):
        places = range(begin, min(begin + step, len(dataset)))
        first, rows, texts, words = begin, dataset, None, None
        if isinstance(dataset, TextSet):
            first, rows = 0, (texts := dataset.subset(places))
            if isinstance(preprocess, Tokenization) and preprocess.by_word:
                with reporting(SILENT):  # blocks are cut into windows one by one; the message would repeat
                    rows = words = by_word(texts, preprocess)
        count = len(places) if words is None else len(words)
        part = (
            islice(stream, SORTED_BATCHES)
            if stream
            else eval_batches(rows, preprocess, batch_size=size, batch_share=batch_share)
        )
        bad: dict[int, str] = {}
        outputs = team.iterate(predictor.responses(_ticked(part, first, bad, ticks), data=dataset.name))
        responses = in_memory(collected(outputs, count=count, names=predictor.score_names))
        # `in_order` exchanges only tensors, so error messages are sent as JSON bytes.
        packed = torch.tensor(list(json.dumps(bad).encode()), dtype=torch.uint8)
        for share in team.in_order([packed]):
            bad |= {int(place): why for place, why in json.loads(bytes(share.tolist())).items()}
        if texts is None or words is None:
            yield places, responses, bad, None
        else:
            yield places, responses.mapped(words.by_document), bad, whole_words(texts, words)


def _ticked(
    batches: Iterable[Batch[Inputs]], first: int, bad: dict[int, str], ticks: Iterator[object]
) -> Iterator[Batch[Inputs]]:
    """Yield batches with `first` subtracted from their indices.

    Args:
        batches: The batches.
        first: Position of the first item in the data set.
        bad: Receives the reason why an item is unreadable, by position in the data set.
        ticks: Iterator that advances after each batch, for a progress bar.
    """
    for batch in batches:
        bad.update(batch.bad)
        yield batch._replace(indices=batch.indices - first)
        next(ticks, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Temperature of a row, applied in addition to the temperatures stored in its checkpoints.

    Attributes:
        temperature: Divisor of all logits. None leaves the predictions unchanged.
        fitted_on: Number of samples of the fit. None if the temperature was given.
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
        """Fit the temperature on held-out data. Warn if the result is a bound of the search.

        Args:
            predictions: Predictions of every member on the held-out data, with logits divided by the stored
                temperatures.
            labels: Class indices, shape (N,) or (N, Q), in 0..C-1; negative for padding words.
            row: Name of the row for messages.
            header: Header with the class names and the task. Multi-label models also get a temperature per
                label, token classifiers a temperature of entities.
            stored: Temperatures stored in the row's checkpoints.
        """
        before = shared_temperature(stored)
        common = Temperature(before.common, of_entities=before.of_entities)
        # Temperatures of labels are fitted again, on logits divided by a common temperature only.
        if before.by_label:
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
        """Return the predictions with scaled logits, float32; without a temperature, the same predictions."""
        if self.temperature is None:
            return predictions
        return Scaled(predictions, divisor(self.temperature))

    def on_top_of(self, stored: Sequence[Temperature]) -> Temperature:
        """Return the total temperature: the stored temperature times this temperature.

        If the row's checkpoints have different temperatures, only this temperature counts.

        Raises:
            InputError: If the result is outside the range of stored temperatures.
        """
        before = shared_temperature(stored)
        total = before if self.temperature is None else before * self.temperature
        if not all(SMALLEST_TEMPERATURE <= number <= LARGEST_TEMPERATURE for number in total.numbers):
            raise InputError(
                f"the stored temperature {before} and the temperature {self.temperature} multiply to {total}, which is outside "
                f"{SMALLEST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}",
                hint="give `--temperature` another value, or leave it out",
            )
        return total

    def values(self, stored: Sequence[Temperature]) -> dict[str, Value]:
        """Return the total temperature for the report by its name `temperature`; empty without temperatures.

        Args:
            stored: Temperatures of the row's checkpoints. Different temperatures are not reported.

        Raises:
            InputError: If the result is outside the range of stored temperatures.
        """
        temperature = self.on_top_of(stored)
        if self.temperature is None and temperature == Temperature():
            return {}
        return {TEMPERATURE: Value(value=temperature.common, count=self.fitted_on)}
