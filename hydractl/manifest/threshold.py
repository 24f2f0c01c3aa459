"""Which inputs a model answers."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from hydractl.manifest.document import StrictModel
from hydractl.manifest.guarantee import Guarantee
from hydractl.manifest.prediction_sets import OpenShare
from hydractl.messages import counted
from hydractl.plugins import load

CHECK_SCORE, IS_FITTED = "hydractl.metrics.ood_scores:check_stored", "hydractl.metrics.ood_scores:is_fitted"
"""Paths of functions that check a stored score by the table of scores, which is in a higher layer."""


class Threshold(StrictModel):
    """Inputs are accepted whose OOD score is below a bound, and what that promises of inputs drawn as its samples were.

    Attributes:
        score: The name of the OOD score.
        below: The bound; None where no bound keeps the risk, so that nobody knows which inputs to accept.
        risk: At most this share is wrong, as `guarantee` counts it.
        guarantee: What is bounded; files of before say nothing of it.
        delta: The chance, over the draw of the samples, that it is not; None where it is bounded on average.
        count: How many samples it was found on.
        accepted: How many of them it accepts.
        errors: How many of these the model answers wrongly.
        version: Of what scores that are fitted mean, `ood_scores.VERSION`.
    """

    score: str
    below: float | None = None
    risk: OpenShare
    guarantee: Guarantee = Field(
        default=Guarantee.ERRORS_AMONG_ACCEPTED,
        exclude_if=lambda value: value is Guarantee.ERRORS_AMONG_ACCEPTED,
    )
    delta: OpenShare | None = Field(default=None, exclude_if=lambda value: value is None)
    count: int = Field(ge=1)
    accepted: int = Field(ge=0)
    errors: int = Field(ge=0)
    version: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)

    @property
    def coverage(self) -> float:
        """The share of the samples that it accepts."""
        return self.accepted / self.count

    @property
    def summary(self) -> str:
        """What it accepts and promises; where there is none, which was looked for."""
        promise = self.guarantee.promise(self.risk, self.delta)
        samples = counted(self.count, "sample")
        if self.below is None:
            return f"no threshold on {self.score} satisfies this guarantee with {samples}: {promise}"
        return (
            f"accepts inputs whose {self.score} is below {self.below:.6g} ({100 * self.coverage:.1f} % of {samples}, {self.errors} "
            f"wrong): {promise}"
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        load(CHECK_SCORE)(self.score, self.version, self.below)
        if not self.errors <= self.accepted <= self.count:
            raise ValueError("must satisfy errors <= accepted <= count")
        if (self.below is None) != (self.accepted == 0):
            raise ValueError("below: required if and only if samples are accepted")
        if (self.delta is None) != (self.guarantee is Guarantee.ACCEPTED_AND_WRONG):
            raise ValueError(f"delta: required by `{Guarantee.ERRORS_AMONG_ACCEPTED}`, else excluded")
        return self
