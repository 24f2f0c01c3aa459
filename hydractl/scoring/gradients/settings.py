"""What a user may set of the methods that look at gates, gradients and losses, with its defaults. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.scoring.settings import Amount, Settings, one_of, within

NORMALIZATIONS = ("none", "layer", "tower")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorSettings(Settings):
    """Of `taylor`.

    Attributes:
        scope: `layer`: each layer is scored without what went before it; `global`: all are scored at once.
        variant: `l1`: the paper's Σ|w g|; `molchanov`: (Σ w g)² a batch.
        normalize: See `hydractl.scoring.normalize`.
    """

    scope: str = "layer"
    variant: str = "l1"
    normalize: str = "none"

    def __post_init__(self) -> None:
        one_of("scope", self.scope, ("layer", "global"))
        one_of("variant", self.variant, ("l1", "molchanov"))
        one_of("normalize", self.normalize, NORMALIZATIONS)

    @property
    def amount(self) -> Amount:
        """What each layer keeps, if layers are scored one by one."""
        return Amount.KEEP if self.scope == "layer" else Amount.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MichelSettings(Settings):
    """Of `michel`.

    Attributes:
        form: `sample`: the absolute value is each sample's; `batch`: each batch's.
        normalize: See `hydractl.scoring.normalize`.
        recompute: Remove so many heads, score anew without them, and so on; 0 scores once.
    """

    form: str = "sample"
    normalize: str = "layer"
    recompute: int = 0

    def __post_init__(self) -> None:
        one_of("form", self.form, ("sample", "batch"))
        one_of("normalize", self.normalize, NORMALIZATIONS)
        within("recompute", self.recompute, low=0)

    @property
    def amount(self) -> Amount:
        """Removals, where scores are computed anew."""
        return Amount.REMOVALS if self.recompute else Amount.NOTHING

    @property
    def objective(self) -> str | None:
        """What removals record."""
        return "-nll" if self.recompute else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadmapSettings(Settings):
    """Of `headmap`.

    Attributes:
        samples: How many are looked at, those of the lowest loss.
    """

    samples: int = 64

    def __post_init__(self) -> None:
        within("samples", self.samples, low=1)

    @property
    def amount(self) -> Amount:
        """What each layer keeps."""
        return Amount.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class HiesSettings(Settings):
    """Of `hies`.

    Attributes:
        alpha: How much importance weighs, in [0, 1]; entropy has the rest.
        normalize: Of importance; see `hydractl.scoring.normalize`.
    """

    alpha: float = 0.5
    normalize: str = "none"

    def __post_init__(self) -> None:
        within("alpha", self.alpha, low=0.0, high=1.0)
        one_of("normalize", self.normalize, NORMALIZATIONS)

    @property
    def default_limit(self) -> int:
        """The source's calibration set."""
        return 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GnormSettings(Settings):
    """Of `gnorm`.

    Attributes:
        normalize: Of each step's scores; see `hydractl.scoring.normalize`.
    """

    normalize: str = "none"

    def __post_init__(self) -> None:
        one_of("normalize", self.normalize, NORMALIZATIONS)

    @property
    def amount(self) -> Amount:
        """Removals."""
        return Amount.REMOVALS

    @property
    def objective(self) -> str:
        """What removals record."""
        return "-nll"


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeSettings(Settings):
    """Of `magnitude`.

    Attributes:
        normalize: See `hydractl.scoring.normalize`.
    """

    normalize: str = "none"

    def __post_init__(self) -> None:
        one_of("normalize", self.normalize, NORMALIZATIONS)
