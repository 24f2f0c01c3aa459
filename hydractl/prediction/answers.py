"""Predictions of models on data sets, shared by the processes of a run.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hydractl.data.batches import BatchShare
from hydractl.data.datasets import Items
from hydractl.data.words import WordSet
from hydractl.metrics.per_sample import Joined, Responses, StoredPredictions, in_memory
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.inference import PreparedData, collected
from hydractl.processes.distributed import ProcessGroup

SINGLE_PROCESS = ProcessGroup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How models run on data.

    Attributes:
        batch_size: Samples per forward pass.
        workers: Processes that decode images; None selects a number.
        max_length: Maximum length of texts in tokens; None for that of the model.
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


def inputs_of(items: Items, *, name: str, batch_size: int, team: ProcessGroup) -> PreparedData:
    """Return a data set that is read once."""
    deal = BatchShare(team.rank, team.world)
    return PreparedData(items, batch_size=batch_size, limit_bytes=0, name=name, deal=deal)
