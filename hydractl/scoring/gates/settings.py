"""What a user may set of the methods that learn gates. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.scoring.settings import Amount, Settings, one_of, positive, spelled, within

JOINT = "joint"
TRAININGS = ("pipelined", JOINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(Settings):
    """Of methods that learn gates.

    Attributes:
        training: `pipelined`: the weights are frozen; `joint`: they train too.
        epochs: Passes over the data.
        gate_lr: Learning rate of the gates.
        weights_lr: Of the weights, with `joint`; None else.
    """

    training: str = TRAININGS[0]
    epochs: int | None = None
    gate_lr: float = 0.1
    weights_lr: float | None = None

    @property
    def seeded(self) -> bool:
        """Yes: of the first gates, their noise and the order of the data."""
        return True

    @property
    def trains(self) -> bool:
        """Yes."""
        return True

    @property
    def trains_weights(self) -> bool:
        """As `training` says."""
        return self.training == JOINT

    def _complete(self, *, epochs: int) -> None:
        """Check the values, and fill in those that hang on others: a pass over the data by default, a joint rate."""
        one_of("training", self.training, TRAININGS)
        if self.weights_lr is not None and not self.trains_weights:
            raise UsageError(
                "`--weights-lr` has no effect with `--training pipelined`, which leaves the weights as they are",
                hint="add `--training joint`",
            )
        object.__setattr__(self, "epochs", epochs if self.epochs is None else self.epochs)
        if self.trains_weights and self.weights_lr is None:
            object.__setattr__(self, "weights_lr", 2e-5)
        within("epochs", self.epochs or 0, low=1)
        for name in ("gate_lr", "weights_lr"):
            if (rate := getattr(self, name)) is not None:
                positive(name, rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Settings(GateSettings):
    """Of `l0`.

    Attributes:
        penalty: λ, what a head that is certainly open adds to the loss.
    """

    penalty: float = 0.0015

    def __post_init__(self) -> None:
        self._complete(epochs=3)
        within("penalty", self.penalty, low=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DspSettings(GateSettings):
    """Of `dsp`; by default it trains for one epoch, and for three if the weights do too.

    Attributes:
        gate_lr: See `GateSettings`.
        estimator: `soft`: a relaxed choice of K heads that hardens; `ste`: a hard one, its gradient straight through.
        temperature: At the first step, for `soft`; it falls to 1e-8.
        cooldown: The share of all steps in which it falls, in (0, 1].
    """

    gate_lr: float = 0.5
    estimator: str = "soft"
    temperature: float | None = None
    cooldown: float | None = None

    def __post_init__(self) -> None:
        self._complete(epochs=3 if self.training == JOINT else 1)
        one_of("estimator", self.estimator, ("soft", "ste"))
        defaults = {"temperature": 1e3, "cooldown": 2 / 3}
        for name, default in defaults.items():
            given = getattr(self, name)
            if given is not None and self.estimator != "soft":
                raise UsageError(
                    f"`{spelled(name)}` has no effect with `--estimator {self.estimator}`, which has no temperature",
                    hint=f"leave `{spelled(name)}` out, or add `--estimator soft`",
                )
            if self.estimator == "soft":
                object.__setattr__(self, name, default if given is None else given)
                positive(name, getattr(self, name))
        within("cooldown", self.cooldown or 0.0, low=0.0, high=1.0)

    @property
    def amount(self) -> Amount:
        """The heads that stay in all."""
        return Amount.KEPT
