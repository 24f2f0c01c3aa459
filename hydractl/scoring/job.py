"""Input and output of scoring methods, and normalization of scores. Tables of scores have one row per layer."""

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
from hydractl.manifest.head_mask import TowerScores
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
    from hydractl.manifest.head_mask import HeadName, HeadScores, Removal, TowerHeads
    from hydractl.manifest.header import Architecture
    from hydractl.prediction.class_names import Classes
    from hydractl.prediction.feature_ood import FeatureExtractor
    from hydractl.provenance.output import Output


S = TypeVar("S", bound=Settings)
Memory: TypeAlias = "Mapping[str, tuple[float, ...]]"
"""State that a search needs to resume: lists of numbers by name."""
NOTHING_LEARNT: Memory = MappingProxyType({})


class Samples(NamedTuple):
    """A batch for methods: inputs (B, ...) on the model's device and in its dtype, labels (B,) or None."""

    inputs: Inputs
    labels: torch.Tensor | None

    def labelled(self, purpose: str) -> tuple[Inputs, torch.Tensor]:
        """Return inputs and labels.

        Raises:
            DataError: If there are no labels, but `purpose` needs them.
        """
        if self.labels is None:
            raise DataError(f"{purpose} needs labelled data")
        return self.inputs, self.labels


@dataclass(kw_only=True)
class Log:
    """Log of a greedy method, from which an interrupted run resumes; this class stores nothing.

    Attributes:
        baseline: Objective with all heads from an interrupted run, None if there is none.
        recorded: Removals of that run.
        memory: State of its search after the last removal.
        run_log: Log of figures, for experiment trackers.
    """

    baseline: float | None = None
    recorded: tuple[Removal, ...] = ()
    memory: Memory = field(default_factory=lambda: NOTHING_LEARNT)
    run_log: RunLog = NO_LOG

    def begin(self, baseline: float) -> None:
        """Record the objective with all heads, before the first new removal."""

    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Record a removal and the state of the search, before the next removal begins."""


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """A model to score, with data and settings.

    Attributes:
        model: A base in evaluation mode; a method may change its attention modules.
        family: Family, which gives the tensors of q, k, v and the output projection.
        architecture: Architecture of `model`.
        id_data: Labelled batches of this process, which can be iterated repeatedly.
        ood_data: Unlabelled batches; empty unless the method needs them.
        settings: Settings of the method.
        keep: Number of heads that each layer keeps, for methods with `BudgetMeaning.KEEP`.
        budget: Number of heads to remove in total, for other methods.
        free: Whether no budget is given, so that a method may determine the number of heads.
        towers: Towers to score; empty for all.
        seed: Random seed.
        max_memory: Bytes for computation in addition to model and data; None for what the device allows.
        compiles: Name of the model in messages if it is compiled; None to not compile.
        log: Log of removals of greedy methods.
        team: Process group.
        training: Resources of a method that trains, as its `MethodRun` returns them.
        features: Of `model`, whose towers then give them beside the logits; None unless the settings need them.
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
        """Return the settings of a method, or its defaults.

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
    """Result of a method.

    Attributes:
        scores: Scores (L, H) of each scored tower; higher is more important.
        removals: For greedy methods, the removed heads in order, with the objective after each.
        baseline: For greedy methods, the objective with all heads.
        clusters: For methods that group heads, the heads of each group, its representative first.
        results: Other results for the scores file.
        weights: For methods that train weights, the model's tensors by the library's names, fp32, on the CPU.
    """

    scores: Mapping[str, Sequence[Sequence[float]]]
    removals: tuple[Removal, ...] | None = None
    baseline: float | None = None
    clusters: tuple[tuple[HeadName, ...], ...] | None = None
    results: Mapping[str, OptionValue] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] | None = None

    def recorded(self) -> dict[str, object]:
        """Return the fields of the scores file."""
        towers = {name: TowerScores(scores=tuple(map(tuple, table))) for name, table in self.scores.items()}
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
        """Return the ranking of a greedy method: scores are the number of earlier removals, or the budget for kept heads."""
        tables = {
            name: [[float(job.budget)] * tower.num_heads for _ in range(tower.layers)]
            for name, tower in job.scored.items()
        }
        for step, removal in enumerate(removals):
            tables[removal.tower][removal.layer][removal.head] = float(step)
        return cls(scores=tables, removals=tuple(removals), baseline=baseline, results=dict(results or {}))


class ScoreInputs(NamedTuple):
    """Inputs of a method.

    Attributes:
        opened: The base.
        scored: Towers to score.
        keep: Number of heads that each layer keeps, for methods that score layer by layer.
        removals: Total number of heads to remove, for greedy methods.
        sets: Data sets by role, `id` or `ood`.
        classes: Classes of a zero-shot model.
        labels: Labels (N,) of all ID data, or None.
        drawn: Positions of the ID samples to use; None for all.
    """

    opened: OpenModel
    scored: Mapping[str, TowerHeads]
    keep: int
    removals: int
    sets: Mapping[str, Dataset]
    classes: Classes | None
    labels: torch.Tensor | None
    drawn: torch.Tensor | None


class MethodRun:
    """Steps of a run that only some methods have; this class is for the others.

    A method that trains derives a class, which is made of the configuration of `score` and the opened model.

    Attributes:
        resumes: Whether an interrupted training is resumed.
    """

    resumes = False

    def check(self, output: Output) -> None:
        """Refuse a model that the method cannot train, and outputs that cannot be written, before data are read."""

    def open_state(self, document: HeadScores) -> None:
        """Open the state of an interrupted training of the scores of `document`."""

    def training(self, inputs: ScoreInputs) -> object:
        """Return the training resources of the job."""

    def publish(self, out: Path, scores: HeadScores, ranking: Ranking, output: Output) -> HeadScores:
        """Write the scores and return them."""
        del ranking
        with output.publish() as begin:
            begin(out).write(scores.to_json().encode())
        return scores

    def clear_state(self) -> None:
        """Remove the state of the training."""


Tables: TypeAlias = "Mapping[str, Sequence[Sequence[float]]]"

TINY = 1e-20
"""Added to what scores are divided by, so that a layer whose scores are all zero keeps them (Michel's own code)."""


def normalized(tables: Tables, how: str) -> dict[str, list[list[float]]]:
    """Return scores divided by a positive number, which keeps the order within a layer.

    Args:
        tables: Scores of any sign, finite; rows may differ in length and may be empty.
        how: `none`: unchanged. `layer`: by the ℓ2 norm of the layer's scores (Michel et al. 2019; Molchanov et al. 2017),
            so that layers have equal weight. `tower`: by the root mean square of the tower's scores, so that towers with
            gradients of different scale are comparable.

    Raises:
        ValueError: If `how` is none of these.
    """
    if how == "none":
        return {tower: [list(row) for row in rows] for tower, rows in tables.items()}
    if how == "layer":
        return {tower: [_divided(row, math.hypot(*row)) for row in rows] for tower, rows in tables.items()}
    if how == "tower":
        return {
            tower: [
                _divided(row, math.hypot(*chain(*rows)) / max(1, sum(map(len, rows))) ** 0.5) for row in rows
            ]
            for tower, rows in tables.items()
        }
    raise ValueError(f"unknown normalization: {how}")


def min_max(tables: Tables) -> dict[str, list[list[float]]]:
    """Return scores min-max scaled to [0, 1] over all heads of all towers; if all are equal they become 0."""
    scores = [x for rows in tables.values() for row in rows for x in row]
    low, span = min(scores, default=0.0), max(scores, default=0.0) - min(scores, default=0.0)
    return {
        tower: [[(x - low) / span if span else 0.0 for x in row] for row in rows]
        for tower, rows in tables.items()
    }


def warn_of_unlike_towers(job: ScoreJob, how: str) -> None:
    """Warn that scores of two towers are not comparable without normalization.

    Gradients and weights of CLIP's two encoders differ strongly in scale, so the paper prunes only the vision encoder
    (Hydra Ensembles, Fig. 7).
    """
    if len(job.scored) > 1 and how == "none":
        progress.warn(
            f"the scores of {' and '.join(job.scored)} differ in scale, but `prune` compares them: add "
            "`--normalize tower`, or score one tower with `--towers vision`"
        )


def _divided(row: Sequence[float], by: float) -> list[float]:
    return [x / (by + TINY) for x in row]


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
