"""What a scoring method is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from hydractl.families.base import Family
    from hydractl.families.inputs import Inputs
    from hydractl.families.tower import Model
    from hydractl.manifest import Architecture, Removal, TowerHeads
    from hydractl.progress import Progress


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


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """A model and the data to score it on.

    Attributes:
        model: A base in evaluation mode; a method may change its attention modules.
        family: Says which tensors are q, k, v and the output projection.
        architecture: Of `model`.
        id_data: Labelled batches that can be gone over again and again.
        ood_data: Unlabelled ones; empty unless the method asks for them.
        keep: Heads that a layer keeps, for methods whose scores depend on it.
        budget: How many heads a greedy method removes.
        objective: `acc`, `ood` or `avg`, for greedy methods.
        scope: `layer` or `global`, for Taylor.
        towers: Those whose heads are scored; empty for all.
        seed: Of everything random.
        log: Where greedy methods write down each removal.
    """

    model: Model
    family: Family
    architecture: Architecture
    id_data: Iterable[Samples] = ()
    ood_data: Iterable[Samples] = ()
    keep: int = 0
    budget: int = 0
    objective: str = "avg"
    scope: str = "layer"
    towers: tuple[str, ...] = ()
    seed: int = 0
    log: Log = field(default_factory=Forgetful)

    @property
    def scored(self) -> Mapping[str, TowerHeads]:
        """The towers whose heads are scored."""
        return {n: t for n, t in self.architecture.towers.items() if not self.towers or n in self.towers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """A method's answer.

    Attributes:
        scores: For each scored tower L rows of H scores, higher is more important.
        removals: For greedy methods the order in which heads went, with the objective after each.
        baseline: For greedy methods the objective with every head.
    """

    scores: Mapping[str, Sequence[Sequence[float]]]
    removals: tuple[Removal, ...] | None = None
    baseline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the table of methods.

    Attributes:
        name: As typed on the command line.
        summary: One line for help.
        run: Scores every head.
        needs_data: Whether it reads labelled data.
        greedy: Whether it removes heads one by one: it takes an objective and a budget, and can be resumed.
        uses: Which of `keep`, `scope`, `seed` shape its scores.
    """

    name: str
    summary: str
    run: Callable[[ScoreJob, Progress], Ranking]
    needs_data: bool
    greedy: bool = False
    uses: frozenset[str] = frozenset()
