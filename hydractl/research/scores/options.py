"""Head importance methods of other papers with settings. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.output.publish import WEIGHTS
from hydractl.scoring.settings import GRADIENTS, NORMALIZE, BudgetMeaning, Method, Settings
from hydractl.settings import Constraint, Extension, Role, Setting, by_default, check, setting

GATES = "Learned gates"
JOINT = "joint"
GATE_RUN = "hydractl.research.scores.gates:GateRun"
SOFT = Constraint("estimator", ("soft",), why="only that one has a temperature")
GATE_LR = Setting(
    "Learning rate of the gates (default: 0.1 for l0, 0.5 for dsp).",
    above=0.0,
    finite=True,
    metavar="LR",
    panel=GATES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MichelSettings(Settings):
    """Settings of `michel`."""

    form: str = setting(
        "sample",
        "michel: take absolute gradients per sample (default) or per batch.",
        choices=("sample", "batch"),
        panel=GRADIENTS,
    )
    normalize: str = by_default(
        "layer",
        replace(
            NORMALIZE,
            help=NORMALIZE.help.replace("default: none", "default: layer for michel, else none"),
            after="recompute",
        ),
    )
    recompute: int = setting(
        0,
        "michel: remove N heads at a time and score again (default: 0, score once).",
        low=0,
        metavar="N",
        panel=GRADIENTS,
    )

    @property
    def budget_means(self) -> BudgetMeaning:
        """With `recompute`, the budget is the number of removals."""
        return BudgetMeaning.REMOVALS if self.recompute else BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """With `recompute`, the objective is the negative loss; otherwise None."""
        return "-nll" if self.recompute else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadmapSettings(Settings):
    """Settings of `headmap`."""

    samples: int = setting(
        64,
        "headmap: use the N samples with the lowest loss (default: 64).",
        low=1,
        metavar="N",
        panel=GRADIENTS,
    )

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the number of heads that each layer keeps."""
        return BudgetMeaning.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings(Settings):
    """Shared settings of methods with learned gates."""

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
    """Default 2e-5, as for joint training in the code of Li et al.; None if weights are frozen."""

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
    """λ. The default is that of the MNLI run of Li et al.; doubling closes more heads."""

    def __post_init__(self) -> None:
        self._complete(epochs=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DspSettings(GateSettings):
    """Settings of `dsp`. The default is 1 epoch, or 3 epochs with joint training."""

    gate_lr: float = by_default(0.5, GATE_LR)
    estimator: str = setting(
        "soft",
        "dsp: soft gates that harden (default), or hard gates with a straight-through gradient (ste).",
        choices=("soft", "ste"),
        panel=GATES,
    )
    temperature: float | None = setting(
        None,
        "dsp: initial temperature of the gates; falls to 1e-8 (default: 1000).",
        option_names=("--gate-temperature",),
        above=0.0,
        finite=True,
        metavar="T",
        panel=GATES,
        only_with=SOFT,
    )
    """Initial temperature, by default 1000 as in the code of Li et al.; None for `ste`."""
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
    """Share of the steps until the final temperature, by default 2/3: about 25,000 of 36,800 steps in the
    MNLI run of Li et al. None for `ste`."""

    def __post_init__(self) -> None:
        self._complete(epochs=3 if self.training == JOINT else 1)
        if self.estimator == "soft":
            object.__setattr__(self, "temperature", 1e3 if self.temperature is None else self.temperature)
            object.__setattr__(self, "cooldown", 2 / 3 if self.cooldown is None else self.cooldown)

    @property
    def budget_means(self) -> BudgetMeaning:
        """The budget is the total number of heads that are kept."""
        return BudgetMeaning.KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedWeights(Extension):
    """Option of `score` for the weights that joint training changes."""

    save_model: Path | None = setting(
        None,
        "Write the weights trained by `--training joint` to PATH; scores are of this base.",
        metavar="PATH",
        check_path=WEIGHTS,
        panel=GATES,
        after="cooldown",
        role=Role.OUTPUT,
    )

    @override
    def check_config(self, config: Any) -> None:
        learns = isinstance(config.settings, GateSettings)
        if self.save_model is not None and not (learns and config.settings.trains_weights):
            raise UsageError(
                f"`--save-model {self.save_model}`: no weights are trained by `--method {config.method}`"
                + (" and `--training pipelined`" if learns else ""),
                hint="add `--training joint`" if learns else "it applies to `--method l0` and `--method dsp`",
            )


METHODS = (
    Method(
        name="michel",
        summary="mean |∂loss/∂gate| of heads (Michel et al. 2019)",
        run="hydractl.research.scores.michel:score_michel",
        settings=MichelSettings,
    ),
    Method(
        name="headmap",
        summary="loss increase when a head is masked (HeadMap)",
        run="hydractl.research.scores.headmap:score_headmap",
        settings=HeadmapSettings,
    ),
    Method(
        name="l0",
        summary="gates closed by a penalty (Voita et al. 2019)",
        run="hydractl.research.scores.l0:score_l0",
        settings=L0Settings,
        seeded=True,  # the first gates, their noise and the order of the data
        method_run=GATE_RUN,
    ),
    Method(
        name="dsp",
        summary="gates of which K remain open (Li et al. 2021)",
        run="hydractl.research.scores.dsp:score_dsp",
        settings=DspSettings,
        seeded=True,
        method_run=GATE_RUN,
    ),
)
