"""What `prune` is told, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.stages.prune.strategy import DEFAULT_CANDIDATES, RULES, Diversity, Strategy
from hydractl.stages.shared.classes import NOTHING_NAMED, Naming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hydractl.heads.budget import Budget


def needs_pool() -> UsageError:
    """Return what is wrong where several members shall come of one scores file that has no clusters."""
    return UsageError(
        "`--members` needs a pool to sample from",
        hint="add `--pool P`, for example twice the number of removed heads",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseConfig:
    """What `diverse` chooses by, and how candidates are run.

    Attributes:
        data: Labelled validation data.
        ood: Out-of-distribution validation data; needed where the objective ranks it.
        candidates: How many masks are drawn, at least as many as members are wanted.
        diversity: What the members' predictions are compared by.
        naming: What a zero-shot model tells apart; without it, the data's classes.
        batch_size: Samples in one forward pass.
        device: Where to compute.
        max_length: Tokens of a text at most, no more than the model reads; None for as many.
    """

    data: str
    ood: str | None = None
    candidates: int = DEFAULT_CANDIDATES
    diversity: Diversity = Diversity.MI
    naming: Naming = NOTHING_NAMED
    batch_size: int = 64
    device: str = "auto"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise UsageError(f"`--candidates {self.candidates}`: must be at least 1")

    @classmethod
    def parse(cls, strategy: Strategy | None, given: Mapping[str, object]) -> DiverseConfig | None:
        """Return what options say, None for another strategy.

        Args:
            strategy: As typed.
            given: By the name of the option without dashes; None where it was not given.

        Raises:
            UsageError: If `diverse` is given no data, or another strategy any of these options.
        """
        present = {name: value for name, value in given.items() if value is not None}
        if strategy is not Strategy.DIVERSE:
            if present:
                named = " and ".join(f"`--{name}`" for name in present)
                raise UsageError(
                    f"{named}: only `--strategy diverse` looks at data",
                    hint="add `--strategy diverse`, or leave it out",
                )
            return None
        if "data" not in present:
            raise UsageError(
                "`--strategy diverse` compares members on validation data", hint="add `--data DATA`"
            )
        naming = Naming.parse(present.pop("classes", None), present.pop("template", None))  # type: ignore[arg-type]
        found = {name.replace("-", "_"): value for name, value in present.items()}
        return cls(naming=naming, **found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig:
    """What to prune, how far, and where to.

    Attributes:
        model: The base.
        out: Output; with several members its name holds `{i}`.
        arch: Architecture of a bare file.
        scores: Scores files: one, or one a member.
        masks: Mask files, one a member; instead of scores.
        strategy: How members come about; None for what the other options and the scores imply.
        budget: How many heads go; needed unless `auto`, or clusters or masks say it.
        auto: The scores say themselves how many heads stay.
        per_layer: Every layer keeps equally many.
        members: How many members to make of one scores file, or of none.
        pool: The first so many heads of the removal order are what members sample from.
        diverge_from: Members are alike before this layer.
        diverse: What `diverse` is told besides.
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
    strategy: Strategy | None = None
    budget: Budget | None = None
    auto: bool = False
    per_layer: bool = False
    members: int = 1
    pool: int | None = None
    diverge_from: int = 0
    diverse: DiverseConfig | None = None
    seed: int = 0
    dtype: str | None = None
    verify: bool = True
    force: bool = False

    def __post_init__(self) -> None:
        if (self.diverse is not None) != (self.strategy is Strategy.DIVERSE):
            raise ValueError("`diverse` goes with the strategy of that name")
        if self.budget is not None and self.auto:
            raise ValueError("a budget is given or left to the scores, not both")
        self._check_source()
        if self.strategy is None:
            self._check_implied()
        else:
            self._check_strategy(self.strategy)
        if self.per_layer and (self.budget is None or self.budget.keep_per_layer is None):
            raise UsageError("`--per-layer` goes with `--keep N`")
        if self.diverse is not None and self.diverse.candidates < self.members:
            raise UsageError(
                f"`--candidates {self.diverse.candidates}`: fewer than the {self.members} members to choose",
                hint=f"give at least `--candidates {2 * self.members}`, so that there is a choice",
            )
        if self.per_layer and self.budget is not None:
            object.__setattr__(self, "budget", replace(self.budget, per_layer=True))
        if self.count > 1 and "{i}" not in self.out.stem:
            raise UsageError(
                f"{self.count} members need {self.count} names",
                hint="put `{i}` into the name, before its ending: `-o 'member-{i}.st'`",
            )

    def _check_source(self) -> None:
        """Refuse both or neither of scores and masks, and what does not go with the one that is given."""
        if [self.model, *map(str, (*self.scores, *self.masks))].count("-") > 1:
            raise UsageError(
                "only one input can come from standard input", hint="write the others to files first"
            )
        if self.scores and self.masks:
            raise UsageError(
                "`--scores` and `--mask` exclude each other",
                hint="drop `--scores` to keep the heads of the mask, or `--mask` to choose heads by their scores",
            )
        if self.masks and (
            self.strategy or self.budget or self.auto or self.per_layer or self.members > 1
            or self.pool is not None or self.diverge_from
        ):  # fmt: skip
            raise UsageError(
                "a mask says itself which heads stay",
                hint="drop `--strategy`, `--keep`, `--remove`, `--keep-fraction`, `--per-layer`, `--members`, `--pool` "
                "and `--diverge-from`",
            )
        if not self.scores and not self.masks and self.strategy is not Strategy.RANDOM:
            raise UsageError(
                "give either `--scores` or `--mask`",
                hint="make scores with `hydractl score MODEL -o scores.json`, or remove heads by chance with "
                "`--strategy random`",
            )
        if (
            not self.masks
            and self.budget is None
            and not self.auto
            and self.strategy is not Strategy.CLUSTERS
        ):
            raise UsageError(
                "how many heads should stay? Give one of `--keep N`, `--remove R`, `--keep-fraction F`",
                hint="`--keep-fraction 0.667` keeps two thirds, as many as `score` does by itself; "
                "`--keep auto` leaves it to the scores",
            )

    def _check_implied(self) -> None:
        """Refuse what contradicts itself where options imply the strategy."""
        if self.members > 1 and len(self.scores) > 1:
            raise UsageError("several `--scores` already make one member each; drop `--members`")
        if self.members > 1 and self.pool is None and not self.auto:
            raise needs_pool()
        if self.pool is not None and (len(self.scores) > 1 or self.per_layer):
            raise UsageError(
                "`--pool` samples from one global removal order: one `--scores`, no `--per-layer`",
                hint="leave out one of them",
            )

    def _check_strategy(self, strategy: Strategy) -> None:
        """Refuse what a strategy does not take, or the lack of what it needs."""
        rules, said = RULES[strategy], f"`--strategy {strategy}`"
        self._check_scores(strategy)
        if rules.pool and self.pool is None:
            raise UsageError(
                f"{said} draws from a pool",
                hint="add `--pool P`, for example twice the number of removed heads",
            )
        if not rules.pool and self.pool is not None:
            raise UsageError(
                f"`--pool` has no effect with {said}", hint="it is for `--strategy sample` and `diverse`"
            )
        if not rules.many and self.members > 1:
            raise UsageError(
                f"{said} makes one member a scores file; drop `--members`",
                hint="several of one file: `--strategy sample`, `diverse` or `clusters`",
            )
        if not rules.per_layer and self.per_layer:
            raise UsageError(
                f"`--per-layer` has no effect with {said}",
                hint="it is for `--strategy best`, `objectives` and `random`",
            )
        if not rules.budget and self.budget is not None:
            raise UsageError(
                f"{said} keeps one head a cluster, so `{self.budget.typed}` has no effect",
                hint="score again with that budget to get other clusters, and leave it out here",
            )
        if strategy is Strategy.RANDOM and self.auto:
            raise UsageError(
                "`--keep auto` asks the scores how many heads stay, and `--strategy random` has none",
                hint="give one of `--keep N`, `--remove R`, `--keep-fraction F`",
            )

    def _check_scores(self, strategy: Strategy) -> None:
        """Refuse too few or too many scores files."""
        low, high = RULES[strategy].scores
        if high == 0 and self.scores:
            raise UsageError(
                f"`--strategy {strategy}` looks at no scores",
                hint="drop `--scores`, or choose by them with `best`",
            )
        if len(self.scores) < low:
            raise UsageError(
                f"`--strategy {strategy}` makes one member a scores file and wants several",
                hint="for example of circuits by `--objective` acc, ood and avg",
            )
        if high is not None and len(self.scores) > high:
            raise UsageError(
                f"`--strategy {strategy}` takes one `--scores`, got {len(self.scores)}",
                hint="one member a file is `--strategy objectives`",
            )

    @property
    def count(self) -> int:
        """How many members come out."""
        return max(self.members, len(self.scores), len(self.masks))

    def outputs(self) -> tuple[Path, ...]:
        """Return each member's path."""
        return tuple(self.out.parent / self.out.name.replace("{i}", str(i)) for i in range(self.count))
