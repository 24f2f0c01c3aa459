"""What a scoring method is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from hydractl.scoring.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from hydractl.families.base import Family
    from hydractl.families.inputs import Inputs
    from hydractl.families.tower import Model
    from hydractl.manifest import Architecture, HeadName, Option, Removal, TowerHeads
    from hydractl.progress import Progress

S = TypeVar("S", bound=Settings)


class Samples(NamedTuple):
    """One batch as methods see it: inputs (B, ...) on the model's device and dtype, labels (B,) or None."""

    inputs: Inputs
    labels: torch.Tensor | None


class Log(Protocol):
    """Where a greedy method writes down what it has done, so that it can go on after an interruption."""

    @property
    def done(self) -> tuple[Removal, ...]:
        """Removals of an earlier, interrupted run."""
        ...

    @property
    def baseline(self) -> float | None:
        """That run's objective with every head, None if there was no such run."""
        ...

    def begin(self, baseline: float) -> None:
        """Take note of the objective with every head, before the first new removal."""
        ...

    def record(self, removal: Removal) -> None:
        """Take note of a removal, before the next begins."""
        ...


class Forgetful:
    """A `Log` that keeps nothing."""

    done: tuple[Removal, ...] = ()
    baseline: float | None = None

    def begin(self, baseline: float) -> None:
        """Drop it."""

    def record(self, removal: Removal) -> None:
        """Drop it."""


class Team(Protocol):
    """The processes that score together. Each is given its share of the batches and meets the others here."""

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of all batches, in the order of the data, of one result for each of this process's.

        Results are on the CPU; all processes call this equally often.
        """
        ...

    def added(self, own: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the sums over all batches of several tensors a batch, added in the order of the data.

        So a sum has the same bits whatever the number of processes. Tensors stay where they are.
        """
        ...


class Alone:
    """The `Team` of one process."""

    def in_order(self, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Team.in_order`."""
        return [result.cpu() for result in own]

    def added(self, own: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """See `Team.added`."""
        total: list[torch.Tensor] = []
        for tensors in own:
            if not total:
                total = [tensor.clone() for tensor in tensors]
                continue
            for i, tensor in enumerate(tensors):
                total[i] += tensor
        return total


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
        keep: Heads that a layer keeps, for methods whose budget is `Amount.KEEP`.
        budget: How many heads go in all, for the others.
        free: Whether no budget was given, so that a method may find the number of heads itself.
        towers: Those whose heads are scored; empty for all.
        seed: Of everything random.
        log: Where greedy methods write down each removal.
        team: The processes that score together.
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
    log: Log = field(default_factory=Forgetful)
    team: Team = field(default_factory=Alone)

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
    """

    scores: Mapping[str, Sequence[Sequence[float]]]
    removals: tuple[Removal, ...] | None = None
    baseline: float | None = None
    clusters: tuple[tuple[HeadName, ...], ...] | None = None
    results: Mapping[str, Option] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the table of methods.

    Attributes:
        name: As typed on the command line.
        summary: One line for help.
        run: Scores every head.
        settings: What a user may set.
        needs_data: Whether it reads labelled data.
    """

    name: str
    summary: str
    run: Callable[[ScoreJob, Progress], Ranking]
    settings: type[Settings] = Settings
    needs_data: bool = True
