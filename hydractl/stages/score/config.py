"""Configuration and result of `score`. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from hydractl.heads.budget import HeadBudget
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig
from hydractl.scoring.methods import METHODS, SETTINGS, settings_for
from hydractl.scoring.settings import CIRCUIT, BudgetMeaning, Method, Settings
from hydractl.settings import (
    Constraint,
    Extension,
    OptionGroup,
    Role,
    Setting,
    by_default,
    bytes_of,
    check,
    check_extensions,
    details,
    extension_field,
    flag,
    required,
    setting,
)
from hydractl.stages import options as shared
from hydractl.training.run_log import check_log

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue
    from hydractl.manifest.head_mask import HeadImportance

READING = Constraint("entry.needs_data", option="method", why="it reads no data")
LOGGING = Constraint("logs_figures", option="method", why="it has no steps to log", hint="leave it out")
SEARCHING = Constraint(
    "entry.searches", option="method", hint="leave it out; it applies to `--method circuit`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig(CommandConfig):
    """Options of `score`."""

    COMMAND: ClassVar[str] = "score"
    COMMON = (
        "out",
        "method",
        "data",
        "ood",
        "seed",
        "keep_heads",
        "remove",
        "keep_fraction",
        "objective",
        "search",
        "device",
    )

    model: str = required(shared.MODEL)
    """A base."""
    out: Path = required(shared.OUT_DOCUMENT)
    method: str = setting(
        "circuit",
        f"Scoring method: {', '.join(METHODS)}."
        + details(f"{'; '.join(f'{m.name}: {m.summary}' for m in METHODS.values())}."),
        choices=tuple(METHODS),
        needs=(
            Constraint(
                "data",
                for_values=tuple(name for name, method in METHODS.items() if method.needs_data),
                message="`--method {config.method}` needs labelled data",
                hint="add `--data DATA`, for example `--data val/`, or use a method that reads no data: `--method magnitude`",
            ),
            Constraint(
                lambda config: config.ood is not None or not config.settings.needs_ood,
                for_values=tuple(METHODS),
                message="objective `{config.settings.objective}` needs OOD data",
                hint="add `--ood DATA`, or `--objective acc`",
            ),
        ),
    )
    data: str | None = setting(
        None,
        f"Labelled data, for circuits validation data.{shared.DATA_DETAILS} Required by methods that read data.",
        metavar=shared.DATA_METAVAR,
        role=Role.DATA,
    )
    limit: int | None = setting(
        None,
        "Use N random samples of `--data` (default: all).",
        low=1,
        metavar="N",
        panel=shared.DATA,
        only_with=READING,
    )
    max_length: int | None = by_default(None, replace(shared.MAX_LENGTH, only_with=READING))
    given: Mapping[str, OptionValue] = by_default({}, OptionGroup(dict, SETTINGS))
    """Settings of the method with other values than the defaults."""
    ood: str | None = setting(
        None,
        "OOD validation data, for circuits with objective avg, ood or fpr95.",
        metavar=shared.DATA_METAVAR,
        role=Role.DATA,
        only_with=Constraint(
            "settings.needs_ood",
            message="`--ood` applies only to `--method circuit` with an objective that uses OOD data: "
            "`ood`, `avg`, `fpr95` or a sum with one",
            hint="leave it out",
        ),
    )
    max_memory: int | None = setting(
        None,
        "Memory for activations, for example 2GiB or 512MB (default: as the device allows); results change by rounding only.",
        metavar="SIZE",
        panel=CIRCUIT,
        after="search",
        parse=partial(bytes_of, "--max-memory"),
        role=Role.EXECUTION,
        only_with=SEARCHING,
    )
    budget: HeadBudget | None = by_default(None, shared.budget(": 2/3"))
    towers: tuple[str, ...] = setting(
        (),
        "Score only the heads of these towers: text, vision (default: both).",
        metavar="A,B",
        panel=shared.ZERO_SHOT,
        parse=lambda text: tuple(text.split(",")) if text else (),
    )
    """Empty for all towers."""
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    seed: int = by_default(0, shared.SEED)
    arch: str | None = by_default(None, shared.ARCH)
    batch_size: int = by_default(64, shared.BATCH_SIZE)
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    device: str = by_default("auto", shared.DEVICE)
    dtype: str | None = by_default(None, shared.DTYPE)
    log_to: tuple[str, ...] = by_default((), replace(shared.LOG_TO, only_with=LOGGING))
    log_dir: Path | None = by_default(None, shared.LOG_DIR)
    compile: bool = flag(
        Setting(
            "Compile the blocks, for circuit: takes minutes at first, then runs faster; results change by rounding only.",
            panel=shared.MACHINE,
            role=Role.EXECUTION,
            only_with=SEARCHING,
        )
    )
    force: bool = flag(shared.FORCE_ANEW)
    wait: bool = flag(shared.WAIT)
    if_changed: bool = flag(IF_CHANGED)
    extensions: tuple[Extension, ...] = extension_field("score")

    settings: Settings = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", settings_for(self.method, self.given))
        check(self)
        check_log(self.log_to, self.log_dir, self.out)
        refuse_shared_input(self.model)
        check_extensions(self)

    @property
    @override
    def unread(self) -> frozenset[str]:
        """Settings with an input that this run does not read."""
        return frozenset() if self.entry.needs_data else frozenset({"data"})

    @property
    def references(self) -> dict[str, str]:
        """Data references by role."""
        references = {"id": self.data if self.entry.needs_data else None, "ood": self.ood}
        return {role: reference for role, reference in references.items() if reference is not None}

    @property
    def logs_figures(self) -> bool:
        """Whether the method has figures for a run log: it trains, or removes one head after another."""
        return self.entry.method_run is not None or self.settings.budget_means == BudgetMeaning.REMOVALS

    @property
    def entry(self) -> Method:
        """The selected method."""
        return METHODS[self.method]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """Result of `score`.

    Attributes:
        path: Scores file.
        scores: Content of the scores file.
        resumed_from: Number of removals read from the journal of an interrupted run.
        default_budget: Whether the method needs a budget but none was given.
        trained: Model that a training method wrote too, or None.
    """

    path: Path
    scores: HeadImportance
    resumed_from: int
    default_budget: bool
    trained: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files written."""
        return (self.path,) if self.trained is None else (self.path, self.trained)
