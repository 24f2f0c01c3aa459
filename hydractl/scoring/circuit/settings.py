"""Settings of `circuit`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, OF_ONE, SCORES
from hydractl.scoring.circuit.objective import AVERAGE, TERMS, parse_objective
from hydractl.scoring.settings import CIRCUIT, BudgetMeaning, Settings
from hydractl.settings import check, setting

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

SEARCHES = ("exact", "lazy")
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
    """As `hydractl.scoring.circuit.objective` writes it."""
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
        choices=SEARCHES,
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
