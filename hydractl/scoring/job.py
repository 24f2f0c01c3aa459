"""Inputs and outputs of scoring methods, and normalization. Tables of importance have one row per layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, TypeVar

import torch

from hydractl import progress
from hydractl.data.batches import Batch
from hydractl.errors import DataError
from hydractl.families.base import Family
from hydractl.manifest.head_mask import TowerImportance
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.processes.distributed import ProcessGroup
from hydractl.runtime import on_device
from hydractl.scoring.settings import Settings
from hydractl.training.run_log import NO_LOG, RunLog

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.data.datasets import Dataset
    from hydractl.families.open_model import OpenModel
    from hydractl.families.tower import Model
    from hydractl.manifest.document import OptionValue
    from hydractl.manifest.head_mask import HeadImportance, HeadName, Removal, TowerHeads
    from hydractl.manifest.header import Architecture
    from hydractl.prediction.class_names import Classes
    from hydractl.prediction.feature_ood import FeatureExtractor
    from hydractl.provenance.output import Output


S = TypeVar("S", bound=Settings)
Memory: TypeAlias = "Mapping[str, tuple[float, ...]]"
"""Resumable state of a search: lists of numbers by name."""
NOTHING_LEARNT: Memory = MappingProxyType({})


class Samples(NamedTuple):
    """Batch of a scoring method.

    Attributes:
        inputs: Shape (B, ...), on the device of the model and in its dtype.
        labels: Shape (B,), or (B, Q) for Q labels or words; None without labels.
    """

    inputs: Inputs
    labels: torch.Tensor | None

    def labelled(self, purpose: str) -> tuple[Inputs, torch.Tensor]:
        """Return inputs and labels.

        Args:
            purpose: Subject of the error message.

        Raises:
            DataError: If there are no labels.
        """
        if self.labels is None:
            raise DataError(f"{purpose} needs labelled data")
        return self.inputs, self.labels


@dataclass(kw_only=True)
class Log:
    """Log of a greedy method, from which an interrupted run resumes. This class stores nothing.

    Attributes:
        baseline: Objective with all heads in the interrupted run, or None.
        recorded: Removals of the interrupted run.
        memory: State of the search after the last removal.
        run_log: Log of metrics for experiment trackers.
    """

    baseline: float | None = None
    recorded: tuple[Removal, ...] = ()
    memory: Memory = field(default_factory=lambda: NOTHING_LEARNT)
    run_log: RunLog = NO_LOG

    def begin(self, baseline: float) -> None:
        """Record the objective with all heads, before the first new removal."""

    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Record a removal and the state of the search, before the next removal starts."""


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """Model, data and settings of a scoring method.

    Attributes:
        model: Base in evaluation mode. A method may change its attention modules.
        family: Family of the model, which names the tensors of q, k, v and the output projection.
        architecture: Architecture of `model`.
        id_data: Labelled batches of this process; can be iterated repeatedly.
        ood_data: Unlabelled batches; empty unless the method needs OOD data.
        settings: Settings of the method.
        keep: Number of heads that each layer keeps, for methods with `BudgetMeaning.KEEP`.
        budget: Total number of heads to remove, for other methods.
        free: Whether the method may select the number of heads, because no budget is given.
        towers: Towers to score; empty for all.
        seed: Random seed.
        max_memory: Bytes for computation, in addition to model and data; None for the limit of the device.
        compiles: Name of the compiled model in messages; None to not compile.
        log: Log of the removals of greedy methods.
        team: Process group.
        training: Resources of a method with training, from `MethodRun.training`.
        features: Extractor of the features of `model`; None unless the settings need features.
    """

    model: Model
    family: Family
    architecture: Architecture
    id_data: Iterable[Samples] = ()
    ood_data: Iterable[Samples] = ()
    settings: Settings = field(default_factory=Settings)
    keep: int = 0
    budget: int = 0
    free: bool = False
    towers: tuple[str, ...] = ()
    seed: int = 0
    max_memory: int | None = None
    compiles: str | None = None
    log: Log = field(default_factory=Log)
    team: ProcessGroup = field(default_factory=ProcessGroup)
    training: object = None
    features: FeatureExtractor | None = None

    @property
    def scored(self) -> Mapping[str, TowerHeads]:
        """Towers to score."""
        return {n: t for n, t in self.architecture.towers.items() if not self.towers or n in self.towers}

    def set_for(self, kind: type[S]) -> S:
        """Return the settings as an instance of `kind`; its defaults if the job has no specific settings.

        Raises:
            TypeError: If the settings belong to another method.
        """
        if type(self.settings) is Settings:
            return kind()
        if not isinstance(self.settings, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(self.settings).__name__}")
        return self.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Result of a scoring method.

    Attributes:
        scores: Importance (L, H) of each scored tower; higher is more important.
        removals: Removed heads in order, with the objective after each removal, for greedy methods.
        baseline: Objective with all heads, for greedy methods.
        clusters: Heads of each group, the representative first, for methods with groups.
        results: Other results for the scores file.
        weights: Tensors of the model by the library's names, fp32, on the CPU, for methods with training.
    """

    scores: Mapping[str, Sequence[Sequence[float]]]
    removals: tuple[Removal, ...] | None = None
    baseline: float | None = None
    clusters: tuple[tuple[HeadName, ...], ...] | None = None
    results: Mapping[str, OptionValue] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] | None = None

    def recorded(self) -> dict[str, object]:
        """Return the fields `towers`, `removals`, `baseline` and `clusters` of the scores file."""
        towers = {
            name: TowerImportance(scores=tuple(map(tuple, table))) for name, table in self.scores.items()
        }
        return {
            "towers": towers,
            "removals": self.removals,
            "baseline": self.baseline,
            "clusters": self.clusters,
        }

    @classmethod
    def of_removals(
        cls,
        job: ScoreJob,
        removals: Sequence[Removal],
        *,
        baseline: float | None,
        results: Mapping[str, OptionValue] | None = None,
    ) -> Self:
        """Return the ranking of a greedy method.

        The importance of a removed head is the number of earlier removals; for kept heads it is the budget.
        """
        tables = {
            name: [[float(job.budget)] * tower.num_heads for _ in range(tower.layers)]
            for name, tower in job.scored.items()
        }
        for step, removal in enumerate(removals):
            tables[removal.tower][removal.layer][removal.head] = float(step)
        return cls(scores=tables, removals=tuple(removals), baseline=baseline, results=dict(results or {}))


class ScoreInputs(NamedTuple):
    """Inputs of a scoring method.

    Attributes:
        model_file: The base.
        scored: Towers to score.
        keep: Number of heads that each layer keeps, for layerwise methods.
        removals: Total number of heads to remove, for greedy methods.
        sets: Data sets by role, `id` or `ood`.
        classes: Classes of a zero-shot model, or None.
        labels: Labels (N,) of all ID data, or None.
        sample_indices: Positions of the ID samples to use; None for all samples.
    """

    model_file: OpenModel
    scored: Mapping[str, TowerHeads]
    keep: int
    removals: int
    sets: Mapping[str, Dataset]
    classes: Classes | None
    labels: torch.Tensor | None
    sample_indices: torch.Tensor | None


class MethodRun:
    """Additional steps of a run. The base class is for methods without such steps.

    Methods with training derive a class. The constructor has two arguments: the configuration of `score` and
    the opened model.

    Attributes:
        resumes: Whether an interrupted training is resumed.
    """

    resumes = False

    def check(self, output: Output) -> None:
        """Raise if the model cannot be trained or an output cannot be written. Called before data is read.

        The base class never raises.
        """

    def open_state(self, document: HeadImportance) -> None:
        """Open the state of an interrupted training for the scores file `document`.

        The base class has no state.
        """

    def training(self, inputs: ScoreInputs) -> object:
        """Return the training resources for `ScoreJob.training`; None in this base class."""

    def publish(self, out: Path, scores: HeadImportance, ranking: Ranking, output: Output) -> HeadImportance:
        """Write the scores file and return its content."""
        del ranking
        with output.publish() as begin:
            begin(out).write(scores.to_json().encode())
        return scores

    def clear_state(self) -> None:
        """Remove the state of the training."""


Tables: TypeAlias = "Mapping[str, Sequence[Sequence[float]]]"

TINY = 1e-20
"""Added to divisors, so that layers with importance 0 stay 0, as in Michel's code. Doubling it changes
nothing above rounding."""


def normalized(tables: Tables, normalization: str) -> dict[str, list[list[float]]]:
    """Return importance divided by a positive number per layer or tower.

    The order within a layer stays the same.

    Args:
        tables: Finite importance of any sign. Rows may differ in length and may be empty.
        normalization: `none` for no change. `layer` divides by the ℓ2 norm of the layer (Michel et al. 2019; Molchanov
            et al. 2017), for equal weight of layers. `tower` divides by the root mean square of the tower,
            for towers with gradients of different scale.

    Raises:
        ValueError: If `normalization` is unknown.
    """
    if normalization == "none":
        return {tower: [list(row) for row in rows] for tower, rows in tables.items()}
    if normalization == "layer":
        return {tower: [_divided(row, math.hypot(*row)) for row in rows] for tower, rows in tables.items()}
    if normalization == "tower":
        return {
            tower: [
                _divided(row, math.hypot(*chain(*rows)) / max(1, sum(map(len, rows))) ** 0.5) for row in rows
            ]
            for tower, rows in tables.items()
        }
    raise ValueError(f"unknown normalization: {normalization}")


def min_max(tables: Tables) -> dict[str, list[list[float]]]:
    """Return importance scaled to [0, 1] over all heads of all towers; 0 if all heads are equal."""
    scores = [x for rows in tables.values() for row in rows for x in row]
    low, span = min(scores, default=0.0), max(scores, default=0.0) - min(scores, default=0.0)
    return {
        tower: [[(x - low) / span if span else 0.0 for x in row] for row in rows]
        for tower, rows in tables.items()
    }


def warn_of_unlike_towers(job: ScoreJob, normalization: str) -> None:
    """Warn if the importance of two towers is not comparable, because it is not normalized.

    Gradients and weights of CLIP's two encoders differ strongly in scale, so the paper prunes the vision
    encoder only (Hydra Ensembles, Fig. 7).
    """
    if len(job.scored) > 1 and normalization == "none":
        progress.warn(
            f"the scores of {' and '.join(job.scored)} differ in scale, but `prune` compares them: add "
            "`--normalize tower`, or score one tower with `--towers vision`"
        )


def _divided(row: Sequence[float], by: float) -> list[float]:
    return [x / (by + TINY) for x in row]


@dataclass(frozen=True, slots=True)
class RepeatedBatches:
    """Batches of a scoring method, created in each pass from cached batches.

    Attributes:
        cached: Evaluation batches.
        labels: Labels of all samples of the data set, or None.
        like: Empty tensor with the device and dtype of the model.
    """

    cached: Iterable[Batch[Inputs]]
    labels: torch.Tensor | None
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.cached:
            labels = None if self.labels is None else on_device(self.labels[batch.indices], self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)
