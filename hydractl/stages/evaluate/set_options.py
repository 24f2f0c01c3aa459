"""Which prediction sets `eval` fits. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from hydractl.manifest.terms import SetMethod
from hydractl.settings import CheckedSettings, Constraint, OptionGroup, Setting, flag, options_of, setting

OPTION, PANEL = "--sets", "Prediction sets"
PENALTY, RANK = 0.01, 5
"""Of RAPS: those of its paper for ImageNet."""
OF_RAPS = Constraint("set_method", (SetMethod.RAPS,))


class Penalties(TypedDict, total=False):
    """The arguments of RAPS; empty for other methods."""

    penalty: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions(CheckedSettings):
    """Level and method; `sets` is None where none are fitted."""

    sets: float | None = setting(
        None,
        "Fit prediction sets on held-out `--data`: the set of an input contains its class with this probability.",
        above=0.0,
        below=1.0,
        shows_range=False,
        range_hint="write 90 % as 0.9",
        metavar="COVERAGE",
        panel=PANEL,
    )
    set_method: SetMethod | None = setting(
        None,
        f"How sets rank classes (default: {SetMethod.LAC}, which gives the smallest sets).",
        choices=tuple(SetMethod),
        panel=PANEL,
        shows_default=False,
        only_with="sets",
    )
    sets_by_class: bool = flag(
        Setting("Let the probability hold for each class.", panel=PANEL, only_with="sets")
    )
    raps_penalty: float | None = setting(
        None,
        f"What `{SetMethod.RAPS}` adds for each class beyond `--raps-rank` (default: {PENALTY:g}).",
        low=0,
        metavar="X",
        panel=PANEL,
        only_with=OF_RAPS,
    )
    raps_rank: int | None = setting(
        None,
        f"Classes up to this rank have no penalty (default: {RANK}).",
        low=1,
        metavar="K",
        panel=PANEL,
        only_with=OF_RAPS,
    )

    @property
    def method(self) -> SetMethod:
        """How sets rank classes."""
        return SetMethod(self.set_method or SetMethod.LAC)

    @property
    def penalties(self) -> Penalties:
        """The arguments of RAPS; empty for other methods."""
        if self.method is not SetMethod.RAPS:
            return {}
        penalty = PENALTY if self.raps_penalty is None else self.raps_penalty
        return Penalties(penalty=penalty, rank=self.raps_rank or RANK)

    @property
    def recorded(self) -> dict[str, str | float | bool | None]:
        """What a step and a report say of them; nothing where none are fitted."""
        if self.sets is None:
            return {}
        return {
            "sets": self.sets,
            "set_method": self.method.value,
            "sets_by_class": self.sets_by_class or None,
            "raps_penalty": self.penalties.get("penalty"),
            "raps_rank": self.penalties.get("rank"),
        }


NO_SETS = SetOptions()
SET_OPTIONS = OptionGroup(lambda options: SetOptions(**options), options_of(SetOptions))
