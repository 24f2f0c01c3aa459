"""What a user may set of the methods that learn gates. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.scoring.settings import GATES, BudgetMeaning, Settings
from hydractl.settings import Setting, by_default, check, setting, spelled

JOINT = "joint"
GATE_LR = Setting(
    "Learning rate of the gates (default: l0 0.1, dsp 0.5).",
    above=0.0,
    finite=True,
    metavar="LR",
    panel=GATES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(Settings):
    """Of methods that learn gates."""

    training: str = setting(
        "pipelined",
        "Learn gates while the weights are frozen (pipelined, default), or together with them (joint).",
        choices=("pipelined", JOINT),
        panel=GATES,
    )
    epochs: int | None = setting(
        None,
        "Passes over the data (default: l0 3; dsp 1, with joint 3).",
        low=1,
        tells=False,
        metavar="N",
        panel=GATES,
    )
    gate_lr: float = by_default(0.1, GATE_LR)
    weights_lr: float | None = setting(
        None,
        "Learning rate of the weights, for joint (default: 2e-5).",
        above=0.0,
        finite=True,
        metavar="LR",
        panel=GATES,
    )
    """None where the weights are frozen."""

    @property
    def trains_weights(self) -> bool:
        """As `training` says."""
        return self.training == JOINT

    def _complete(self, *, epochs: int) -> None:
        """Check the values, and fill in those that hang on others: a pass over the data by default, a joint rate."""
        check(self)
        if self.weights_lr is not None and not self.trains_weights:
            raise UsageError(
                "`--weights-lr` has no effect with `--training pipelined`, which leaves the weights as they are",
                hint="add `--training joint`",
            )
        object.__setattr__(self, "epochs", epochs if self.epochs is None else self.epochs)
        if self.trains_weights and self.weights_lr is None:
            object.__setattr__(self, "weights_lr", 2e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Settings(GateSettings):
    """Of `l0`."""

    penalty: float = setting(
        0.0015,
        "What an open head adds to the loss, for l0 (default: 0.0015): more closes more heads.",
        low=0.0,
        tells=False,
        metavar="P",
        panel=GATES,
    )
    """λ."""

    def __post_init__(self) -> None:
        self._complete(epochs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DspSettings(GateSettings):
    """Of `dsp`; by default it trains for one epoch, and for three if the weights do too."""

    gate_lr: float = by_default(0.5, GATE_LR)
    estimator: str = setting(
        "soft",
        "For dsp: a soft choice that hardens (default), or a hard one, straight through (ste).",
        choices=("soft", "ste"),
        panel=GATES,
    )
    temperature: float | None = setting(
        None,
        "Where the temperature of dsp starts (default: 1000); it falls to 1e-8.",
        above=0.0,
        finite=True,
        metavar="T",
        panel=GATES,
    )
    """None for `ste`, as `cooldown` is."""
    cooldown: float | None = setting(
        None,
        "Share of the steps in which it falls (default: 2/3).",
        above=0.0,
        low=0.0,
        high=1.0,
        finite=True,
        tells=False,
        metavar="F",
        panel=GATES,
    )

    def __post_init__(self) -> None:
        for name, default in {"temperature": 1e3, "cooldown": 2 / 3}.items():
            given = getattr(self, name)
            if given is not None and self.estimator != "soft":
                raise UsageError(
                    f"`{spelled(name)}` has no effect with `--estimator {self.estimator}`, which has no temperature",
                    hint=f"leave `{spelled(name)}` out, or add `--estimator soft`",
                )
            if self.estimator == "soft":
                object.__setattr__(self, name, default if given is None else given)
        self._complete(epochs=3 if self.training == JOINT else 1)

    @property
    def budget_means(self) -> BudgetMeaning:
        """The heads that stay in all."""
        return BudgetMeaning.KEPT
