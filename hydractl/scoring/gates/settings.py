"""Settings of methods that learn gates. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.scoring.settings import GATES, BudgetMeaning, Settings
from hydractl.settings import Constraint, Setting, by_default, check, setting

JOINT = "joint"
SOFT = Constraint("estimator", ("soft",), why="only that one has a temperature")
GATE_LR = Setting(
    "Learning rate of the gates (default: 0.1 for l0, 0.5 for dsp).",
    above=0.0,
    finite=True,
    metavar="LR",
    panel=GATES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(Settings):
    """Common settings of methods that learn gates."""

    training: str = setting(
        "pipelined",
        "Train gates with frozen weights (pipelined, default) or together with them (joint).",
        choices=("pipelined", JOINT),
        panel=GATES,
    )
    epochs: int | None = setting(
        None,
        "Passes over the data (default: 3; for dsp with frozen weights 1).",
        low=1,
        shows_range=False,
        metavar="N",
        panel=GATES,
    )
    gate_lr: float = by_default(0.1, GATE_LR)
    weights_lr: float | None = setting(
        None,
        "Learning rate of the weights, for `--training joint` (default: 2e-5).",
        above=0.0,
        finite=True,
        metavar="LR",
        panel=GATES,
        only_with=Constraint("training", (JOINT,), why="otherwise the weights are frozen"),
    )
    """None if the weights are frozen."""

    @property
    def trains_weights(self) -> bool:
        """Whether `training` is `joint`."""
        return self.training == JOINT

    def _complete(self, *, epochs: int) -> None:
        """Check the values, and set defaults that depend on other values."""
        check(self)
        object.__setattr__(self, "epochs", epochs if self.epochs is None else self.epochs)
        if self.trains_weights and self.weights_lr is None:
            object.__setattr__(self, "weights_lr", 2e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Settings(GateSettings):
    """Settings of `l0`."""

    penalty: float = setting(
        0.0015,
        "l0: penalty of an open gate; more closes more heads (default: 0.0015).",
        low=0.0,
        shows_range=False,
        metavar="P",
        panel=GATES,
    )
    """λ."""

    def __post_init__(self) -> None:
        self._complete(epochs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DspSettings(GateSettings):
    """Settings of `dsp`; by default one epoch, or three with joint training."""

    gate_lr: float = by_default(0.5, GATE_LR)
    estimator: str = setting(
        "soft",
        "dsp: soft gates that harden (default), or hard gates with a straight-through gradient (ste).",
        choices=("soft", "ste"),
        panel=GATES,
    )
    temperature: float | None = setting(
        None,
        "dsp: initial temperature; falls to 1e-8 (default: 1000).",
        above=0.0,
        finite=True,
        metavar="T",
        panel=GATES,
        only_with=SOFT,
    )
    """None for `ste`, as `cooldown` is."""
    cooldown: float | None = setting(
        None,
        "dsp: fraction of the steps in which the temperature falls (default: 2/3).",
        above=0.0,
        low=0.0,
        high=1.0,
        finite=True,
        shows_range=False,
        metavar="F",
        panel=GATES,
        only_with=SOFT,
    )

    def __post_init__(self) -> None:
        self._complete(epochs=3 if self.training == JOINT else 1)
        if self.estimator == "soft":
            object.__setattr__(self, "temperature", 1e3 if self.temperature is None else self.temperature)
            object.__setattr__(self, "cooldown", 2 / 3 if self.cooldown is None else self.cooldown)

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the number of heads that are kept in total."""
        return BudgetMeaning.KEPT
