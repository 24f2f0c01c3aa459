"""What a user may set of `circuit`. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.metrics.ood_scores import MSP, OF_ONE, SCORES
from hydractl.scoring.circuit.objective import AVERAGE, TERMS, parse_objective
from hydractl.scoring.settings import CIRCUIT, BudgetMeaning, Settings
from hydractl.settings import Constraint, check, setting

if TYPE_CHECKING:
    from hydractl.manifest.document import OptionValue

SEARCHES = ("exact", "lazy")
RECHECK = 24
DOUBT = 0.5
LAZY = Constraint("search", ("lazy",))


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings(Settings):
    """Of `circuit`."""

    objective: str = setting(
        "avg",
        "What the kept heads should be good at: acc, ood (AUROC), avg of both (default), nll, ece, fpr95, or a sum such "
        "as `0.5*acc+0.5*auroc` or `acc-0.1*nll`. More is better: nll, ece and fpr95 are subtracted, whichever sign is "
        "written.",
        metavar="OBJECTIVE",
        suggestions=(*TERMS, AVERAGE),
        panel=CIRCUIT,
    )
    """As `hydractl.scoring.circuit.objective` writes it."""
    ood_score: str = setting(
        MSP,
        "What tells OOD samples: the maximum softmax probability (default), the entropy, the energy or the largest logit; "
        "mi is about several models, which a circuit is not.",
        choices=tuple(SCORES),
        panel=CIRCUIT,
    )
    search: str = setting(
        "exact",
        "exact (default): every head on all data at each removal; lazy: those that look best by what is remembered of "
        "them.",
        choices=SEARCHES,
        panel=CIRCUIT,
    )
    recheck: int | None = setting(
        None,
        f"lazy: every head at each N-th removal (default {RECHECK}).",
        low=1,
        metavar="N",
        panel=CIRCUIT,
        only_with=LAZY,
    )
    """None where the search is exact."""
    doubt: float | None = setting(
        None,
        "lazy: let a head go unseen whose valuing is expected to raise the objective by no more than X times how much heads "
        f"differ at first (default {DOUBT}; 0 values every head).",
        low=0,
        metavar="X",
        panel=CIRCUIT,
        only_with=LAZY,
    )
    """None where the search is exact."""
    swaps: int | None = setting(
        None,
        "lazy: at the end try up to N swaps of a head that went for one that stayed (default: as many as go; 0: none); it ends "
        "sooner where half as many as go were in vain, one after another, and where none promises anything, but for a search that has "
        "cost less than a third of an exact one.",
        low=0,
        metavar="N",
        panel=CIRCUIT,
        only_with=LAZY,
    )
    """None for the default, and where the search is exact."""

    def __post_init__(self) -> None:
        objective = parse_objective(self.objective)
        object.__setattr__(self, "objective", objective.text)
        if self.search == "lazy" and self.recheck is None:
            object.__setattr__(self, "recheck", RECHECK)
        if self.search == "lazy" and self.doubt is None:
            object.__setattr__(self, "doubt", DOUBT)
        check(self)
        if self.ood_score not in OF_ONE:
            raise UsageError(
                f"`--ood-score {self.ood_score}`: of a circuit is {SCORES[self.ood_score].of_single_model}: it is about the members of several models",
                hint=f"choose from {', '.join(OF_ONE)}",
            )
        if self.ood_score != MSP and not objective.needs_ood:
            raise UsageError(
                f"`--ood-score` has no effect with `--objective {objective.text}`",
                hint="leave it out, or take an objective that reads OOD data, such as `avg`",
            )

    @property
    def budget_means(self) -> BudgetMeaning:
        """The heads that go, one by one."""
        return BudgetMeaning.REMOVALS

    @property
    def needs_ood(self) -> bool:
        """As the objective says."""
        return parse_objective(self.objective).needs_ood

    def options(self) -> dict[str, OptionValue]:
        """Return what a scores file records; the usual way to search and to tell OOD samples goes without saying."""
        usual = {"ood_score": MSP, "search": "exact"}
        return {name: value for name, value in Settings.options(self).items() if usual.get(name) != value}
