"""Settings of scoring methods. Importing the module does not load torch."""

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
"""Panels of options in order. Panels of other methods follow."""


class BudgetMeaning(StrEnum):
    """Meaning of the budget for a method."""

    NOTHING = "nothing"
    """The budget has no effect; all heads are scored."""
    KEEP = "keep"
    """The budget is the number of heads that each layer keeps."""
    REMOVALS = "removals"
    """The budget is the total number of heads to remove, one by one."""
    KEPT = "kept"
    """The budget is the total number of heads to keep."""
    CHOICE = "choice"
    """The budget is the total number of heads to keep; the method selects a number if no budget is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CheckedSettings):
    """Settings of a method without options. Each field of a derived class is an option."""

    @property
    def budget_means(self) -> BudgetMeaning:
        """Meaning of the budget with these settings."""
        return BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """Text of the objective after each removal in the scores file; None if the method has no objective."""
        return None

    @property
    def needs_ood(self) -> bool:
        """Whether the method needs OOD data."""
        return False

    @property
    def needs_features(self) -> bool:
        """Whether the method needs the inputs of the classifier."""
        return False

    def options(self) -> dict[str, OptionValue]:
        """Return the settings for the scores file by name, without `objective` and without None."""
        return {k: v for k, v in asdict(self).items() if k != "objective" and v is not None}


OBJECTIVE_SCORES = (*OF_ONE, ENERGY_DENSITY)
"""OOD scores for objectives: scores of a single model from logits, and the default score of fused models."""


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
    """Text of an objective, see `hydractl.scoring.objective`."""
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
        """The budget is the total number of heads to remove, one by one."""
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
        """Return the settings for the scores file, without an OOD score of MSP or an exact search."""
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
        """With `scope` `layer`, the budget is the number of heads that each layer keeps."""
        return BudgetMeaning.KEEP if self.scope == "layer" else BudgetMeaning.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeSettings(Settings):
    """Settings of `magnitude`."""

    normalize: str = by_default("none", NORMALIZE)


PERPLEXITY = 10.0
"""Default perplexity of t-SNE (CAHP, step 3). Twice the value weights distant heads more."""
HIGHEST_DEGREE = 15
"""Highest degree of the polynomial. Fits of higher degree to hundreds of values are ill-conditioned. Chosen
by hand; 30 would allow such fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CahpSettings(Settings):
    """Settings of `cahp`, with the defaults of the authors' code."""

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
    """Lowered for models with few heads; None without t-SNE."""
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
    """At least one batch is used."""

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
        """The budget is the total number of heads to keep; the method selects a number if no budget is given."""
        return BudgetMeaning.CHOICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Scoring method.

    Attributes:
        name: Name on the command line.
        summary: One line for the help text.
        run: Function from `ScoreJob` to `Ranking` as `module:name`, imported at the call.
        settings: Class of the settings.
        needs_data: Whether the method needs labelled data.
        seeded: Whether the importance depends on the seed, apart from the subset of samples.
        searches: Whether the method searches circuits. Memory can then be limited, the cost estimated and the
            model compiled.
        method_run: Path of a `MethodRun` class for methods with training, or None.
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
