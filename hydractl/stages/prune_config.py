"""What `prune` is told, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.heads.select import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig:
    """What to prune, how far, and where to.

    Attributes:
        model: The base.
        out: Output; with several members its name holds `{i}`.
        arch: Architecture of a bare file.
        scores: Scores files: one, or one a member.
        masks: Mask files, one a member; instead of scores.
        budget: How many heads go; needed with scores.
        per_layer: Every layer keeps equally many.
        members: How many members to make of one scores file.
        pool: The first so many heads of the removal order are what members sample from.
        diverge_from: Members are alike before this layer.
        seed: Of the sampling.
        dtype: bf16, fp16 or fp32; None keeps each tensor's own.
        verify: Check that pruned equals masked before anything is published.
        force: Replace existing outputs.
    """

    model: str
    out: Path
    arch: str | None = None
    scores: tuple[Path, ...] = ()
    masks: tuple[Path, ...] = ()
    budget: Budget | None = None
    per_layer: bool = False
    members: int = 1
    pool: int | None = None
    diverge_from: int = 0
    seed: int = 0
    dtype: str | None = None
    verify: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        self._check_source()
        if self.members > 1 and len(self.scores) > 1:
            raise UsageError("several `--scores` already make one member each; drop `--members`")
        if self.members > 1 and self.pool is None:
            raise UsageError(
                "`--members` needs a pool to sample from",
                hint="add `--pool P`, for example twice the number of removed heads",
            )
        if self.pool is not None and (len(self.scores) > 1 or self.per_layer):
            raise UsageError(
                "`--pool` samples from one global removal order: one `--scores`, no `--per-layer`"
            )
        if self.per_layer and (self.budget is None or self.budget.keep_per_layer is None):
            raise UsageError("`--per-layer` goes with `--keep N`")
        if self.count > 1 and "{i}" not in self.out.name:
            raise UsageError(
                f"{self.count} members need {self.count} names",
                hint="put `{i}` into the name: `-o 'member-{i}.st'`",
            )

    def _check_source(self) -> None:
        """Refuse both or neither of scores and masks, and what does not go with the one that is given."""
        if self.scores and self.masks:
            raise UsageError(
                "`--scores` and `--mask` exclude each other",
                hint="drop `--scores` to keep the heads of the mask, or `--mask` to choose heads by their scores",
            )
        if not self.scores and not self.masks:
            raise UsageError(
                "give either `--scores` or `--mask`",
                hint="make scores with `hydractl score MODEL -o scores.json`",
            )
        if self.scores and self.budget is None:
            raise UsageError(
                "how many heads should stay? Give one of `--keep N`, `--remove R`, `--keep-fraction F`",
                hint="`--keep-fraction 0.667` keeps two thirds, as many as `score` does by itself",
            )
        if self.masks and (
            self.budget or self.per_layer or self.members > 1 or self.pool is not None or self.diverge_from
        ):
            raise UsageError(
                "a mask says itself which heads stay",
                hint="drop `--keep`, `--remove`, `--keep-fraction`, `--per-layer`, `--members`, `--pool` and `--diverge-from`",
            )

    @property
    def count(self) -> int:
        """How many members come out."""
        return max(self.members, len(self.scores), len(self.masks))

    def outputs(self) -> tuple[Path, ...]:
        """Return each member's path."""
        return tuple(self.out.parent / self.out.name.replace("{i}", str(i)) for i in range(self.count))


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
class PruneReport:
    """What `prune` did."""

    model: str
    heads: int
    base: Size
    members: tuple[PrunedMember, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return tuple(p for m in self.members for p in (m.path, m.mask_path) if p is not None)
