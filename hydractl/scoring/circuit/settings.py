"""What a user may set of `circuit`. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.scoring.circuit.objective import parse_objective
from hydractl.scoring.settings import Amount, Settings, one_of, within

if TYPE_CHECKING:
    from hydractl.manifest import Option

OOD_SCORES = ("msp", "energy", "entropy", "max-logit")
"""The names of `hydractl.metrics.ood.LOGIT_SCORES`, which loads torch."""
SEARCHES = ("exact", "lazy")
RECHECK = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitSettings(Settings):
    """Of `circuit`.

    Attributes:
        objective: What the kept heads should be good at; see `hydractl.scoring.circuit.objective`.
        ood_score: What tells OOD samples: a name of `OOD_SCORES`.
        search: How the best head to remove is looked for: a name of `SEARCHES`.
        recheck: At each `recheck`-th removal `lazy` values every head; None for `RECHECK`.
    """

    objective: str = "avg"
    ood_score: str = "msp"
    search: str = "exact"
    recheck: int | None = None

    def __post_init__(self) -> None:
        objective = parse_objective(self.objective)
        object.__setattr__(self, "objective", objective.text)
        one_of("ood_score", self.ood_score, OOD_SCORES)
        one_of("search", self.search, SEARCHES)
        if self.ood_score != "msp" and not objective.needs_ood:
            raise UsageError(
                f"`--ood-score` has no effect with `--objective {objective.text}`",
                hint="leave it out, or take an objective that reads OOD data, such as `avg`",
            )
        if self.search == "lazy" and self.recheck is None:
            object.__setattr__(self, "recheck", RECHECK)
        if self.recheck is not None:
            if self.search != "lazy":
                raise UsageError(
                    "`--recheck` has no effect without `--search lazy`", hint="add that, or leave it out"
                )
            within("recheck", self.recheck, low=1)

    @property
    def amount(self) -> Amount:
        """Removals."""
        return Amount.REMOVALS

    @property
    def needs_ood(self) -> bool:
        """As the objective says."""
        return parse_objective(self.objective).needs_ood

    @property
    def bounded(self) -> bool:
        """Yes."""
        return True

    def options(self) -> dict[str, Option]:
        """See `Settings.options`; the usual way to search and to tell OOD samples goes without saying."""
        usual = {"ood_score": "msp", "search": "exact"}
        found = Settings.options(self)
        return {name: value for name, value in found.items() if usual.get(name) != value}
