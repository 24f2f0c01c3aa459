"""Configuration of `prune`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.output.publish import is_folder, is_stream
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.pruning.strategies import IMPLIED, RULES, Diversity, Rules, Strategy
from hydractl.settings import (
    CheckedSettings,
    Constraint,
    Option,
    OptionGroup,
    Role,
    Setting,
    by_default,
    check,
    details,
    flag,
    long_option,
    required,
    setting,
)
from hydractl.stages import options as shared

DEFAULT_CANDIDATES = 32
"""Chosen by hand. Twice the number doubles the time of the strategy `diverse` and widens the choice."""


MEMBERS, DIVERSE = "Members", "Strategy diverse"
AUTO = shared.AUTO
NEEDS_POOL = Constraint(
    lambda config: config.strategy or config.pool or config.auto,
    message="`--members` needs a pool to sample from",
    hint="add `--pool P`, for example twice the number of removed heads",
)
"""Constraint for several members from a scores file without clusters."""
BY_SCORES = Constraint(
    "masks",
    message="a mask already says which heads are kept",
    hint="leave out `--strategy`, `--keep-heads`, `--remove`, `--keep-fraction`, `--per-layer`, `--whole-groups`, `--members`, `--pool` "
    "and `--trunk`",
)
"""Constraint for options that select heads by scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseConfig(CheckedSettings):
    """Options of the strategy `diverse`."""

    data: str = required(
        Setting(
            f"Labelled validation data to compare members on.{shared.DATA_DETAILS}",
            metavar=shared.DATA_METAVAR,
            panel=DIVERSE,
            role=Role.DATA,
        )
    )
    ood: str | None = setting(
        None,
        "OOD validation data, if the objective of the scores needs it.",
        metavar=shared.DATA_METAVAR,
        panel=DIVERSE,
        role=Role.DATA,
    )
    candidates: int = setting(
        DEFAULT_CANDIDATES,
        f"Number of masks to choose from (default: {DEFAULT_CANDIDATES}).",
        low=1,
        metavar="N",
        panel=DIVERSE,
    )
    """At least the number of members."""
    diversity: Diversity = setting(
        Diversity.MI,
        "Maximise mutual information (default), pairwise disagreement, or nothing (a control).",
        choices=tuple(Diversity),
        panel=DIVERSE,
    )
    batch_size: int = by_default(
        64, replace(shared.BATCH_SIZE, help="Samples per forward pass (default: 64).")
    )
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    device: str = by_default(
        "auto", replace(shared.DEVICE, help="Device: auto (default), cpu, cuda, cuda:N or mps.")
    )
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)

    @classmethod
    def parse(cls, options: dict[str, Any]) -> DiverseConfig | None:
        """Return the options of `diverse`, or None for another strategy.

        Args:
            options: Given options and `strategy`, by name.

        Raises:
            UsageError: If `diverse` has no data, or another strategy has any of these options.
        """
        if options.pop("strategy", None) is not Strategy.DIVERSE:
            if options:
                named = " and ".join(f"`{long_option(name)}`" for name in options)
                raise UsageError(
                    f"{named}: only `--strategy diverse` uses data",
                    hint="add `--strategy diverse`, or leave it out",
                )
            return None
        if "data" not in options:
            raise UsageError(
                "`--strategy diverse` compares members on validation data", hint="add `--data DATA`"
            )
        return cls(
            naming=Naming.parse(options.pop("classes", None), options.pop("template", None)), **options
        )


def amount_of(options: dict[str, Any]) -> HeadBudget | None:
    """Return the budget from `--keep-heads`, `--remove` or `--keep-fraction`.

    Returns:
        None without these options, or with `--keep-heads auto`.

    Raises:
        UsageError: If two options are given, or a value is out of range.
    """
    if options.get("keep_heads") != AUTO:
        return shared.budget_of(**options)
    if len(options) > 1:
        raise UsageError(
            f"`--keep-heads auto` and `{'--keep-fraction' if 'keep_fraction' in options else '--remove'}` exclude each other",
            hint="`--keep-heads auto` takes the number from the scores",
        )
    return None


def mask_path(path: Path) -> Path | None:
    """Return the path of a member's head mask file, for example `a.mask.json` for `a.st`.

    None for a stream or a folder.
    """
    return None if is_stream(path) or is_folder(path) else path.parent / f"{path.stem}.mask.json"


KEEP_HEADS = Setting(
    "Keep N heads per layer, on average over the model; auto takes the number from the scores.",
    low=0,
    shows_range=False,
    parse=partial(
        shared.count_or_auto, "--keep-heads", of="heads", hint="`--keep-heads 8`, or `--keep-heads auto`"
    ),
    metavar="N|auto",
    panel=shared.BUDGET_PANEL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig(CommandConfig):
    """Options of `prune`."""

    COMMAND: ClassVar[str] = "prune"
    COMMON = (
        "out",
        "scores",
        "masks",
        "members",
        "seed",
        "keep_heads",
        "remove",
        "keep_fraction",
        "strategy",
        "pool",
        "trunk",
    )

    model: str = required(
        replace(
            shared.MODEL,
            needs=(
                Constraint(
                    lambda config: config.scores or config.masks or config.strategy == Strategy.RANDOM,
                    message="give either `--scores` or `--mask`",
                    hint="make scores with `hydractl score MODEL --data VAL -o scores.json`, or remove heads at random "
                    "with `--strategy random`",
                ),
                Constraint(
                    lambda config: config.masks or config.budget or config.auto or not config.rules.budget,
                    message="the number of heads to keep is missing: give one of `--keep-heads N`, `--remove R`, `--keep-fraction F`",
                    hint="`--keep-fraction 0.667` keeps two thirds, the default of `score`; `--keep-heads auto` "
                    "takes the number from the scores",
                ),
            ),
        )
    )
    """The base."""
    out: Path = required(shared.OUT_MEMBERS)
    """Contains `{i}` if there are several members."""
    scores: tuple[Path, ...] = setting(
        (),
        "Scores of heads, or `-` for standard input; several make one member each.",
        metavar="JSON",
        role=Role.FILE,
        excludes=(
            Constraint(
                "masks",
                hint="leave out `--scores` to keep the heads of the mask, or `--mask` to choose heads by scores",
            ),
            Constraint(
                lambda config: config.rules.scores == (0, 0),
                message="`--strategy {config.strategy}` uses no scores",
                hint="leave out `--scores`, or use `--strategy best`",
            ),
            Constraint(
                lambda config: len(config.scores) > 1 and config.rules.scores == (1, 1),
                message="`--strategy {config.strategy}` takes one `--scores` file, not {config.count}",
                hint="for one member per file use `--strategy objectives`",
            ),
        ),
    )
    masks: tuple[Path, ...] = setting(
        (),
        "Head mask to use instead of scores; several make one member each.",
        option_names=("--mask",),
        metavar="JSON",
        role=Role.FILE,
        excludes=tuple(replace(BY_SCORES, field_name=name) for name in ("budget", "auto")),
    )
    budget: HeadBudget | None = by_default(None, replace(shared.budget(keep=KEEP_HEADS), make=amount_of))
    """Number of heads to remove. Required unless `auto`, clusters or masks determine the number."""
    auto: bool = by_default(
        value=False,
        declaration=OptionGroup(lambda given: given.get("keep_heads") == AUTO, extra_names=("keep_heads",)),
    )
    """Whether the scores determine the number of kept heads."""
    per_layer: bool = flag(
        Setting(
            "Keep exactly N heads in every layer, with `--keep-heads N`.",
            panel=shared.BUDGET_PANEL,
            needs=Constraint(
                lambda config: config.budget and config.budget.keep_per_layer is not None,
                message="`--per-layer` requires `--keep-heads N`",
            ),
            only_with=Constraint(
                "rules.per_layer",
                message="`--per-layer` has no effect with `--strategy {config.strategy}`",
                hint="it applies to `--strategy best`, `objectives` and `random`",
            ),
            excludes=BY_SCORES,
        )
    )
    whole_groups: bool = flag(
        Setting(
            "Remove heads that share keys together, by the mean of their scores; numbers of heads are multiples.",
            panel=shared.BUDGET_PANEL,
            needs=Constraint(
                lambda config: config.masks or config.budget,
                message="`--whole-groups` requires a number of heads",
                hint="give one of `--keep-heads N`, `--remove R`, `--keep-fraction F`",
            ),
            excludes=BY_SCORES,
        )
    )
    strategy: Strategy | None = setting(
        None,
        f"How to choose heads: {', '.join(Strategy)} (default: as other options imply)."
        + details("; ".join(f"{name}: {RULES[name].summary}" for name in Strategy)),
        choices=tuple(Strategy),
        panel=MEMBERS,
        needs=(
            Constraint(
                lambda config: config.masks or len(config.scores) >= config.rules.scores[0],
                message="`--strategy {config.strategy}` makes one member per scores file and needs several files",
                hint="for example circuits with `--objective` acc, ood and avg",
            ),
            Constraint(
                lambda config: config.masks or config.pool or not config.rules.pool,
                message="`--strategy {config.strategy}` needs a pool of heads",
                hint="add `--pool P`, for example twice the number of removed heads",
            ),
        ),
        excludes=(
            BY_SCORES,
            Constraint(
                lambda config: config.budget and not config.rules.budget,
                message="`--strategy {config.strategy}` keeps one head per cluster, so `{config.budget.option_text}` has no effect",
                hint="leave it out, or score again with that budget to get other clusters",
            ),
            Constraint(
                "auto",
                for_values=(Strategy.RANDOM,),
                message="`--keep-heads auto` takes the number of heads from scores, but `--strategy random` uses none",
                hint="give one of `--keep-heads N`, `--remove R`, `--keep-fraction F`",
            ),
        ),
    )
    members: int = setting(
        1,
        "Number of members.",
        low=1,
        metavar="M",
        needs=(
            Constraint(
                lambda config: config.strategy or len(config.scores) <= 1,
                message="several `--scores` make one member each; leave out `--members`",
            ),
            replace(NEEDS_POOL, field_name=lambda config: config.masks or NEEDS_POOL.is_met(config)),
            Constraint(
                lambda config: config.diverse is None or config.diverse.candidates >= config.members,
                message="`--candidates {config.diverse.candidates}`: fewer candidates than the {config.members} members",
                hint="give at least `--candidates {config.members}`",
            ),
        ),
        only_with=Constraint(
            "rules.has_members",
            message="`--strategy {config.strategy}` makes one member per scores file; leave out `--members`",
            hint="for several members from one file use `--strategy sample`, `diverse` or `clusters`",
        ),
        excludes=BY_SCORES,
    )
    """All members use the same scores file, or no file."""
    pool: int | None = setting(
        None,
        "Sample from the P heads with the lowest scores, for strategies sample and diverse.",
        low=1,
        metavar="P",
        panel=MEMBERS,
        only_with=Constraint(
            lambda config: config.strategy is None or config.rules.pool,
            message="`--pool` has no effect with `--strategy {config.strategy}`",
            hint="it applies to `--strategy sample` and `diverse`",
        ),
        excludes=(
            BY_SCORES,
            Constraint(
                lambda config: config.strategy is None and (len(config.scores) > 1 or config.per_layer),
                message="`--pool` needs one global removal order: one `--scores` file and no `--per-layer`",
                hint="leave out one of them",
            ),
        ),
    )
    trunk: int = setting(
        0,
        "Give members equal heads in the first N blocks, which then run once in a hydra.",
        low=0,
        metavar="N",
        panel=MEMBERS,
        excludes=BY_SCORES,
    )
    diverse: DiverseConfig | None = by_default(
        None,
        OptionGroup(
            DiverseConfig.parse,
            (*Option.of(DiverseConfig), *shared.NAMING.options),
            extra_names=("strategy",),
        ),
    )
    seed: int = by_default(0, shared.SEED)
    """Seed of the sampling."""
    arch: str | None = by_default(None, shared.ARCH)
    dtype: str | None = by_default(None, shared.DTYPE)
    verify: bool = flag(shared.VERIFY, on=True)
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(IF_CHANGED)

    def __post_init__(self) -> None:
        if (self.diverse is not None) != (self.strategy == Strategy.DIVERSE):
            raise ValueError("`diverse` requires the strategy of that name")
        if self.budget is not None and self.auto:
            raise ValueError("a budget and `auto` exclude each other")
        check(self)
        refuse_shared_input(self.model, *map(str, (*self.scores, *self.masks)), what="input")
        if self.per_layer and self.budget is not None:
            object.__setattr__(self, "budget", replace(self.budget, per_layer=True))
        self.outputs()  # checks that the name contains `{i}` for several members

    @property
    def rules(self) -> Rules:
        """Rules of the strategy. Without a given strategy, other constraints check the options."""
        return IMPLIED if self.strategy is None else RULES[self.strategy]

    @property
    def count(self) -> int:
        """Number of members."""
        return max(self.members, len(self.scores), len(self.masks))

    @override
    def outputs(self) -> tuple[Path, ...]:
        """Return the path of each member."""
        return shared.numbered(self.out, self.count)

    @property
    @override
    def implied(self) -> dict[str, Strategy]:
        """Default strategy under the key `strategy`; empty with `masks` or `auto`.

        `objectives` for several scores files, else `sample` with a pool, else `best`. Clusters in the scores
        are not considered.
        """
        if self.masks or self.auto:
            return {}
        sampled = Strategy.BEST if self.pool is None else Strategy.SAMPLE
        return {"strategy": Strategy.OBJECTIVES if len(self.scores) > 1 else sampled}

    @override
    def output_files(self) -> tuple[Path, ...]:
        """Return the paths of all files: members and masks."""
        return tuple(
            path
            for member_path in self.outputs()
            for path in (member_path, mask_path(member_path))
            if path is not None
        )
