"""What `prune` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a model costs: parameters, multiply-accumulates for one sample, bytes of its tensors."""

    parameters: int
    macs: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedMember:
    """One member as it was written."""

    path: Path
    mask_path: Path | None
    heads_kept: int
    heads_removed: int
    size: Size
    largest_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A drawn mask: its place among the draws, from 0, and its objective on the validation data."""

    draw: int
    objective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDiversity:
    """How much the members of one set, or of several on average, differ on the ID validation data.

    Attributes:
        name: What the set is.
        objective: Mean of the members'.
        mi: Mutual information, in nats.
        disagreement: Share of pairs that predict different classes, in [0, 1].
    """

    name: str
    objective: float
    mi: float
    disagreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseReport:
    """What `diverse` chose out of what.

    Attributes:
        objective: What candidates were valued by.
        median: Of all candidates; none below it was chosen, unless fewer than members are as good.
        chosen: In the order of their choice.
        sets: The chosen ones, what `sample` draws, and the mean over as many sets of `sample` as the candidates make.
    """

    objective: str
    median: float
    chosen: tuple[Candidate, ...]
    sets: tuple[SetDiversity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """What `prune` did.

    Attributes:
        model: The base.
        heads: How many it has.
        base: What it costs.
        members: What was written.
        found: What `--keep auto` chose, in words, one for each scores file; empty without it.
        diverse: What `diverse` chose; None with another strategy.
    """

    model: str
    heads: int
    base: Size
    members: tuple[PrunedMember, ...]
    found: tuple[str, ...] = ()
    diverse: DiverseReport | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return tuple(p for m in self.members for p in (m.path, m.mask_path) if p is not None)
