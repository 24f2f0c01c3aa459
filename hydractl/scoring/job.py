"""What a scoring method is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, TypeVar

from hydractl.errors import DataError
from hydractl.families.base import Family
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.scoring.settings import Settings
from hydractl.training.run_log import NO_LOG, RunLog

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model
    from hydractl.manifest.document import OptionValue
    from hydractl.manifest.head_mask import HeadName, Removal, TowerHeads
    from hydractl.manifest.header import Architecture
    from hydractl.training.feeding.feed import Feed
    from hydractl.training.resume import Snapshot, StateFolder

S = TypeVar("S", bound=Settings)
Memory: TypeAlias = "Mapping[str, tuple[float, ...]]"
"""What a search must remember to go on as if it had not been interrupted: lists of numbers by name."""
NOTHING_LEARNT: Memory = MappingProxyType({})
NO_RESULTS: Mapping[str, OptionValue] = MappingProxyType({})


class Samples(NamedTuple):
    """One batch as methods see it: inputs (B, ...) on the model's device and dtype, labels (B,) or None."""

    inputs: Inputs
    labels: torch.Tensor | None

    def labelled(self, purpose: str) -> tuple[Inputs, torch.Tensor]:
        """Return inputs and labels.

        Raises:
            DataError: If there are no labels, which `purpose` needs.
        """
        if self.labels is None:
            raise DataError(f"{purpose} needs labelled data")
        return self.inputs, self.labels


@dataclass(kw_only=True)
class Log:
    """Where a greedy method writes down what it has done, so that it can go on after an interruption; this one keeps nothing.

    Attributes:
        baseline: The objective with every head of an earlier, interrupted run, None if there was no such run.
        recorded: That run's removals.
        memory: What its search remembered after the last of them.
    """

    baseline: float | None = None
    recorded: tuple[Removal, ...] = ()
    memory: Memory = field(default_factory=lambda: NOTHING_LEARNT)

    def begin(self, baseline: float) -> None:
        """Take note of the objective with every head, before the first new removal."""

    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Take note of a removal, and of what the search remembers then, before the next begins."""


@dataclass(frozen=True, kw_only=True)
class GateTraining:
    """What a method is offered that trains.

    Attributes:
        feed: Makes the in-distribution data into shuffled batches; decodes them once where that will do.
        folder: Where the state of an unfinished run goes; None saves nothing.
        start: Where to go on; None from the beginning.
        keeps_weights: Whether weights that train are kept.
        run_log: Where figures are logged.
    """

    feed: Callable[[], Feed]
    folder: StateFolder | None = None
    start: Snapshot | None = None
    keeps_weights: bool = False
    run_log: RunLog = NO_LOG


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """A model and the data to score it on.

    Attributes:
        model: A base in evaluation mode; a method may change its attention modules.
        family: Says which tensors are q, k, v and the output projection.
        architecture: Of `model`.
        id_data: Labelled batches that can be gone over again and again: this process's share of them.
        ood_data: Unlabelled ones; empty unless the method asks for them.
        settings: The method's own.
        keep: Heads that a layer keeps, for methods whose budget is `BudgetMeaning.KEEP`.
        budget: How many heads go in all, for the others.
        free: Whether no budget was given, so that a method may find the number of heads itself.
        towers: Those whose heads are scored; empty for all.
        seed: Of everything random.
        max_memory: Bytes for what is computed with, beside the model and the data; None for what suits the device.
        compiles: What messages call a model that is compiled; None compiles none.
        log: Where greedy methods write down each removal.
        team: The processes that score together.
        training: For methods whose settings say that they train.
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
    training: GateTraining | None = None

    @property
    def scored(self) -> Mapping[str, TowerHeads]:
        """The towers whose heads are scored."""
        return {n: t for n, t in self.architecture.towers.items() if not self.towers or n in self.towers}

    def set_for(self, kind: type[S]) -> S:
        """Return the settings of a method, its defaults where none were given.

        Raises:
            TypeError: If they are another method's.
        """
        if type(self.settings) is Settings:
            return kind()
        if not isinstance(self.settings, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(self.settings).__name__}")
        return self.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A method's answer.

    Attributes:
        scores: For each scored tower L rows of H scores, higher is more important.
        removals: For greedy methods the order in which heads went, with the objective after each.
        baseline: For greedy methods the objective with every head.
        clusters: For methods that group heads, each group's heads, the one that stands for it first.
        results: What else the method found, for the scores file.
        weights: For methods that train weights the model's tensors by the library's names, fp32, on the CPU.
    """

    scores: Mapping[str, Sequence[Sequence[float]]]
    removals: tuple[Removal, ...] | None = None
    baseline: float | None = None
    clusters: tuple[tuple[HeadName, ...], ...] | None = None
    results: Mapping[str, OptionValue] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] | None = None

    @classmethod
    def of_removals(
        cls,
        job: ScoreJob,
        removals: Sequence[Removal],
        *,
        baseline: float | None,
        results: Mapping[str, OptionValue] = NO_RESULTS,
    ) -> Self:
        """Return what a greedy method answers: a head's score is how many went before it, the budget where it stays."""
        tables = {
            name: [[float(job.budget)] * tower.num_heads for _ in range(tower.layers)]
            for name, tower in job.scored.items()
        }
        for step, removal in enumerate(removals):
            tables[removal.tower][removal.layer][removal.head] = float(step)
        return cls(scores=tables, removals=tuple(removals), baseline=baseline, results=dict(results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the table of methods.

    Attributes:
        name: As typed on the command line.
        summary: One line for help.
        run: Scores every head.
        settings: What a user may set.
        needs_data: Whether it reads labelled data.
        default_limit: How many in-distribution samples are used where the user gives no limit; None for all.
        seeded: Whether the seed shapes the scores, beside the choice of samples.
        searches: Whether it values circuits one after another: what that takes can be bounded, estimated and compiled.
        trains: Whether scores are learned, in shuffled epochs over the data.
        as_given: Whether batches lie in the order of the data, texts too, which else come by length.
    """

    name: str
    summary: str
    run: Callable[[ScoreJob, Progress], Ranking]
    settings: type[Settings] = Settings
    needs_data: bool = True
    default_limit: int | None = None
    seeded: bool = False
    searches: bool = False
    trains: bool = False
    as_given: bool = False
