"""Settings of scoring methods. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, OF_ONE, SCORES
from hydractl.scoring.objective import AVERAGE, TERMS, parse_objective
from hydractl.settings import CheckedSettings, Setting, by_default, check, setting

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue


CIRCUIT, TAYLOR, GRADIENTS, CAHP = PANELS = ("Circuit", "Taylor", "Gradients", "CAHP")
"""Panels of options in order; a method may add others after them."""


class BudgetMeaning(StrEnum):
    """Meaning of the budget of a method."""

    NOTHING = "nothing"
    """Every head is scored, whatever the budget."""
    KEEP = "keep"
    """The budget is the number of heads that each layer keeps."""
    REMOVALS = "removals"
    """The budget is the number of heads that are removed in total, one by one."""
    KEPT = "kept"
    """The budget is the number of heads that are kept in total."""
    CHOICE = "choice"
    """The budget is the number of heads that are kept in total; without one the method determines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CheckedSettings):
    """Settings of a method without options; other methods declare fields, each an option with the same name."""

    @property
    def budget_means(self) -> BudgetMeaning:
        """Meaning of the budget with these settings."""
        return BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """Objective that removals record."""
        return None

    @property
    def needs_ood(self) -> bool:
        """Whether OOD data are needed."""
        return False

    @property
    def needs_features(self) -> bool:
        """Whether the inputs of the classifier are needed."""
        return False

    def options(self) -> dict[str, OptionValue]:
        """Return the settings that a scores file records."""
        return {k: v for k, v in asdict(self).items() if k != "objective" and v is not None}


OBJECTIVE_SCORES = (*OF_ONE, ENERGY_DENSITY)
"""OOD scores that an objective may use: of a single model, by its logits or by the default of fused models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings(Settings):
    """Settings of `circuit`."""

    objective: str = setting(
        "avg",
        "Objective to maximise: acc, ood (AUROC), avg of both (default), nll, ece, fpr95, or a sum such as `acc-0.1*nll`.",
        metavar="OBJECTIVE",
        suggestions=(*TERMS, AVERAGE),
        panel=CIRCUIT,
    )
    """As `hydractl.scoring.objective` writes it."""
    ood_score: str = setting(
        MSP,
        f"OOD score of the objective: {', '.join(OF_ONE)}, or {ENERGY_DENSITY}, fitted on `--data` (default: {MSP}).",
        choices=(*SCORES, ENERGY_DENSITY),
        metavar="SCORE",
        panel=CIRCUIT,
    )
    search: str = setting(
        "lazy",
        "Evaluate only promising heads at each removal (lazy, default: 2 to 4 times faster; no difference was found on "
        "held-out data), or every head (exact: Algorithm 1).",
        choices=("exact", "lazy"),
        panel=CIRCUIT,
    )

    def __post_init__(self) -> None:
        objective = parse_objective(self.objective)
        object.__setattr__(self, "objective", objective.text)
        check(self)
        if self.ood_score not in OBJECTIVE_SCORES:
            raise UsageError(
                f"`--ood-score {self.ood_score}`: for a circuit it is "
                f"{SCORES[self.ood_score].of_single_model}, because it compares several members",
                hint=f"choose from {', '.join(OBJECTIVE_SCORES)}",
            )
        if self.ood_score != MSP and not objective.needs_ood:
            raise UsageError(
                f"`--ood-score` has no effect with `--objective {objective.text}`",
                hint="leave it out, or use an objective with OOD data, such as `avg`",
            )

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the number of heads that are removed, one by one."""
        return BudgetMeaning.REMOVALS

    @property
    def needs_ood(self) -> bool:
        """Whether the objective needs OOD data."""
        return parse_objective(self.objective).needs_ood

    @property
    def needs_features(self) -> bool:
        """Whether the OOD score is computed from features."""
        return self.ood_score == ENERGY_DENSITY

    def options(self) -> dict[str, OptionValue]:
        """Return the settings that a scores file records; without a search it is exact, and without an OOD score MSP."""
        usual = {"ood_score": MSP, "search": "exact"}
        return {name: value for name, value in Settings.options(self).items() if usual.get(name) != value}


NORMALIZE = Setting(
    "Divide scores by the norm of their layer or the RMS of their tower (default: none).",
    choices=("none", "layer", "tower"),
    panel=GRADIENTS,
)
"""See `hydractl.scoring.job.normalized`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorSettings(Settings):
    """Settings of `taylor`."""

    scope: str = setting(
        "layer",
        "Score layers one after another without heads removed before (default), or all at once.",
        choices=("layer", "global"),
        panel=TAYLOR,
    )
    variant: str = setting(
        "l1", "Score by Σ|w g| (default) or (Σ w g)² per batch.", choices=("l1", "molchanov"), panel=TAYLOR
    )
    normalize: str = by_default("none", NORMALIZE)

    @property
    def budget_means(self) -> BudgetMeaning:
        """With `scope` `layer` the budget is the number of heads that each layer keeps."""
        return BudgetMeaning.KEEP if self.scope == "layer" else BudgetMeaning.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeSettings(Settings):
    """Settings of `magnitude`."""

    normalize: str = by_default("none", NORMALIZE)


PERPLEXITY = 10.0
HIGHEST_DEGREE = 15
"""Of a polynomial whose fit to hundreds of numbers of groups is still well conditioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CahpSettings(Settings):
    """Settings of `cahp`, with the defaults of the source."""

    degree: int = setting(
        6,
        "Degree of the polynomial that smooths the silhouettes (default: 6).",
        low=1,
        high=HIGHEST_DEGREE,
        shows_range=False,
        metavar="N",
        panel=CAHP,
    )
    representative: str = setting(
        "salience",
        "Keep the most salient head of each group (default) or its medoid.",
        choices=("salience", "medoid"),
        panel=CAHP,
    )
    embedding: str = setting(
        "tsne",
        "Group heads after t-SNE (default) or by their class profiles.",
        choices=("tsne", "none"),
        panel=CAHP,
    )
    perplexity: float | None = setting(
        None,
        f"Perplexity of t-SNE (default: {PERPLEXITY:g}).",
        above=0.0,
        finite=True,
        metavar="P",
        panel=CAHP,
    )
    """Lowered for models of few heads; None without t-SNE."""
    signature_size: int = setting(
        32,
        "Resize attention maps to N x N (default: 32).",
        low=2,
        high=256,
        shows_range=False,
        metavar="N",
        panel=CAHP,
    )
    salience_share: float = setting(
        0.25,
        "Compute salience on this fraction of the batches (default: 0.25).",
        low=0.0,
        high=1.0,
        shows_range=False,
        metavar="F",
        panel=CAHP,
    )
    """One batch at least."""

    def __post_init__(self) -> None:
        if self.embedding == "tsne" and self.perplexity is None:
            object.__setattr__(self, "perplexity", PERPLEXITY)
        if self.perplexity is not None and self.embedding != "tsne":
            raise UsageError(
                f"`--perplexity` has no effect with `--embedding {self.embedding}`", hint="leave it out"
            )
        check(self)

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the number of heads that are kept in total; by default the method determines it."""
        return BudgetMeaning.CHOICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A scoring method.

    Attributes:
        name: Name on the command line.
        summary: One line for the help text.
        run: Function that scores all heads, `ScoreJob -> Ranking`, as `module:name`; imported when it is called.
        settings: Class of its settings.
        needs_data: Whether it needs labelled data.
        seeded: Whether scores depend on the seed, apart from the choice of samples.
        searches: Whether it searches circuits, so that its memory can be bounded, its cost estimated and the model
            compiled.
        method_run: Path of a `MethodRun` class, for methods that train.
        as_given: Whether batches keep the order of the data; otherwise texts are sorted by length.
    """

    name: str
    summary: str
    run: str
    settings: type[Settings] = Settings
    needs_data: bool = True
    seeded: bool = False
    searches: bool = False
    method_run: str | None = None
    as_given: bool = False
