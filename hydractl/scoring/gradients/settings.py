"""Settings of methods based on gates, gradients and losses. Importing this module does not load torch."""

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
"""See `hydractl.scoring.normalize`."""


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
        """With `scope` `layer` the budget is the number of heads that each layer keeps."""
        return BudgetMeaning.KEEP if self.scope == "layer" else BudgetMeaning.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MichelSettings(Settings):
    """Settings of `michel`."""

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
        """With `recompute` the budget is the number of removals."""
        return BudgetMeaning.REMOVALS if self.recompute else BudgetMeaning.NOTHING

    @property
    def objective(self) -> str | None:
        """With `recompute`, the loss."""
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
class MagnitudeSettings(Settings):
    """Settings of `magnitude`."""

    normalize: str = by_default("none", NORMALIZE)
