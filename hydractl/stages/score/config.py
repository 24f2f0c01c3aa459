"""What `score` is told and what it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.parallel import refuse_shared_input
from hydractl.scoring.methods import METHODS, settings_for
from hydractl.scoring.settings import names_of
from hydractl.stages.shared.classes import NOTHING_NAMED, Naming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hydractl.heads.select import Budget
    from hydractl.manifest import HeadScores, Option
    from hydractl.scoring.job import Method
    from hydractl.scoring.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """What to score, how, and where to.

    Attributes:
        model: A base.
        out: The scores file.
        method: A name of `METHODS`.
        data: Labelled in-distribution data: validation data for circuits, calibration data for gradients.
        ood: Out-of-distribution validation data, for objectives that need it.
        given: The method's own settings as far as they are not its defaults; see `hydractl.scoring.settings`.
        budget: What the settings' `amount` says.
        limit: Use only so many in-distribution samples, drawn with the seed; None for the method's own default.
        max_length: Tokens of a text at most, no more than the model reads; None for as many.
        towers: Those whose heads are scored; empty for all. The others keep all of theirs when pruned.
        naming: What a zero-shot model tells apart; without it, the data's classes.
        seed: Of everything random.
        arch: Architecture of a bare file.
        batch_size: Samples in one forward pass.
        device: Where to compute.
        dtype: What to compute in; None is the checkpoint's own.
        max_memory: Bytes for what is computed with, beside the model and the data; None for what suits the device.
        trained: Where the weights go that train together with the scores; None drops them.
        force: Replace an existing output, drop another run's journal.
    """

    model: str
    out: Path
    method: str = "circuit"
    data: str = "digits"
    ood: str | None = None
    given: Mapping[str, Option] = field(default_factory=dict)
    budget: Budget | None = None
    limit: int | None = None
    max_length: int | None = None
    seed: int = 0
    towers: tuple[str, ...] = ()
    naming: Naming = NOTHING_NAMED
    arch: str | None = None
    batch_size: int = 64
    device: str = "auto"
    dtype: str | None = None
    max_memory: int | None = None
    trained: Path | None = None
    force: bool = False

    settings: Settings = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", settings_for(self.method, self.given))
        if self.settings.needs_ood and self.ood is None:
            raise UsageError(
                f"objective `{getattr(self.settings, 'objective', None)}` needs out-of-distribution data",
                hint="add `--ood DATA`, or `--objective acc`",
            )
        if self.ood is not None and not self.settings.needs_ood:
            raise UsageError(
                "`--ood` is read only by `--method circuit` whose objective reads it: `ood`, `avg`, `fpr95` or a sum with one",
                hint="leave it out",
            )
        if self.limit is not None and not self.entry.needs_data:
            raise UsageError(
                f"`--limit` has no effect with `--method {self.method}`, which reads no data",
                hint="leave it out",
            )
        if self.max_memory is not None and not self.settings.bounded:
            raise UsageError(
                f"`--max-memory` has no effect with `--method {self.method}`",
                hint="leave it out; it is for `--method circuit`",
            )
        refuse_shared_input(self.model)
        if self.max_length is not None and not self.entry.needs_data:
            raise UsageError(
                f"`--max-length` has no effect with `--method {self.method}`, which reads no data",
                hint="leave it out",
            )
        if self.trained is not None and not self.settings.trains_weights:
            learns = "training" in names_of(self.entry.settings)
            raise UsageError(
                f"`--trained {self.trained}`: no weights train with `--method {self.method}`"
                + (" and `--training pipelined`" if learns else ""),
                hint="add `--training joint`" if learns else "it is for `--method l0` and `--method dsp`",
            )

    @property
    def drawn(self) -> int | None:
        """How many in-distribution samples are used at most; None for all."""
        return self.settings.default_limit if self.limit is None else self.limit

    @property
    def entry(self) -> Method:
        """The chosen row of the table of methods."""
        return METHODS[self.method]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """What `score` did; `default_budget` where the method needed a budget and was given none."""

    path: Path
    scores: HeadScores
    resumed_from: int
    default_budget: bool
    trained: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return (self.path,) if self.trained is None else (self.path, self.trained)
