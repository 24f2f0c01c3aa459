"""What a user may set of the methods that look at gates, gradients and losses, with its defaults. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.scoring.settings import GRADIENTS, TAYLOR, BudgetMeaning, Settings
from hydractl.settings import Setting, by_default, setting

NORMALIZE = Setting(
    "Divide scores by the norm of their layer or the RMS of their tower (default: layer for michel, else none).",
    choices=("none", "layer", "tower"),
    panel=GRADIENTS,
    after="recompute",
)
"""As `hydractl.scoring.normalize` does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorSettings(Settings):
    """Of `taylor`."""

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
        """What each layer keeps, if layers are scored one by one."""
        return BudgetMeaning.KEEP if self.scope == "layer" else BudgetMeaning.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MichelSettings(Settings):
    """Of `michel`."""

    form: str = setting(
        "sample",
        "michel: take absolute gradients per sample (default) or per batch.",
        choices=("sample", "batch"),
        panel=GRADIENTS,
    )
    normalize: str = by_default("layer", NORMALIZE)
    recompute: int = setting(
        0,
        "michel: remove N heads at a time and score again (default: 0, score once).",
        low=0,
        metavar="N",
        panel=GRADIENTS,
    )

    @property
    def budget_means(self) -> BudgetMeaning:
        """Removals, where scores are computed anew."""
        return BudgetMeaning.REMOVALS if self.recompute else BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """The loss, likewise."""
        return "-nll" if self.recompute else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadmapSettings(Settings):
    """Of `headmap`."""

    samples: int = setting(
        64,
        "headmap: use the N samples with the lowest loss (default: 64).",
        low=1,
        metavar="N",
        panel=GRADIENTS,
    )

    @property
    def budget_means(self) -> BudgetMeaning:
        """What each layer keeps."""
        return BudgetMeaning.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class HiesSettings(Settings):
    """Of `hies`."""

    alpha: float = setting(
        0.5,
        "hies: weight of importance against entropy (default: 0.5).",
        low=0.0,
        high=1.0,
        metavar="A",
        panel=GRADIENTS,
    )
    normalize: str = by_default("none", NORMALIZE)
    """Of importance alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GnormSettings(Settings):
    """Of `gnorm`."""

    normalize: str = by_default("none", NORMALIZE)
    """Of each step's scores."""

    @property
    def budget_means(self) -> BudgetMeaning:
        """The heads that go, one by one."""
        return BudgetMeaning.REMOVALS

    @property
    def objective(self) -> str:
        """The loss."""
        return "-nll"


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeSettings(Settings):
    """Of `magnitude`."""

    normalize: str = by_default("none", NORMALIZE)
