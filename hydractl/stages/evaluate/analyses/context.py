"""What an analysis is given of a row: its models as they run, its data, and what was predicted of them.

Axes: N samples, M members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.data.batches import Batch
from hydractl.data.corruptions.names import Corruption
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.prompts import Classes
from hydractl.manifest.head_mask import HeadScores
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress


class ModelOfRow(NamedTuple):
    """One model of a row, as it is opened and as it runs; its members count from `first` on."""

    opened: OpenModel
    model: Towers
    first: int

    @property
    def members(self) -> int:
        """How many it has."""
        return len(self.opened.header.masks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisContext:
    """A row.

    Attributes:
        parts: Its models.
        base: The model that its members were pruned from, if that is known and stands beside it.
        separate_members: Of a hydra with merged weights the members that it was fused from, if they are a row.
        batches: This process's share of a data set by its name, or of the ID set under a corruption, as a model reads it; may be
            asked for again and again.
        counts: How many samples each data set has.
        labels: Of the ID set, (N,).
        ood: The OOD sets, by what means are over: `near`, `far`, `all`.
        corruptions: Those of the ID set.
        scores: Importances of the base's heads by what they are called, from files.
        predictions: What its members say of each data set, where this process has it.
        scaled: Divides logits by the temperature that was fitted for the row, or given.
        metrics: To measure ensembles by.
        ranks: The OOD scores that follow from predictions.
        classes: What zero-shot models tell apart.
        seed: Of what is drawn.
        team: Who shares the batches.
        progress: Hears what is done.
    """

    parts: Sequence[ModelOfRow]
    base: OpenModel | None
    separate_members: Sequence[OpenModel]
    batches: Callable[[ModelOfRow, str | Corruption], Iterable[Batch[Inputs]]]
    counts: Mapping[str, int]
    labels: Tensor
    ood: Mapping[str, Sequence[str]]
    corruptions: Sequence[Corruption]
    scores: Mapping[str, HeadScores]
    predictions: Mapping[str, StoredPredictions]
    scaled: Callable[[StoredPredictions], StoredPredictions]
    metrics: Sequence[str]
    ranks: Sequence[str]
    classes: Classes | None
    seed: int
    team: ProcessGroup
    progress: Progress

    @property
    def sets(self) -> tuple[str, ...]:
        """The OOD sets."""
        return tuple(self.ood.get("all", ()))

    def inputs(self, part: ModelOfRow, of: str | Corruption) -> Iterator[tuple[Tensor, Inputs]]:
        """Yield the places of some samples, and them as a model of the row takes them, where it is."""
        like = torch.empty(0, device=part.model.device, dtype=part.model.dtype)
        for batch in self.batches(part, of):
            yield batch.indices, inputs_like(batch.inputs, like)
