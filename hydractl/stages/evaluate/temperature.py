"""Which temperature a row of `eval` has, and what it does to predictions.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from hydractl.manifest import Value
from hydractl.metrics.needs import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, fit_temperature, scale_log_probs
from hydractl.progress import counted

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What all logits of a row are divided by.

    Attributes:
        temperature: None leaves the predictions as they are, and the report without the number.
        fitted_on: How many samples; None if it was given.
    """

    temperature: float | None = None
    fitted_on: int | None = None

    @classmethod
    def fit(cls, log_probs: Tensor, labels: Tensor, *, row: str, progress: Progress) -> Self:
        """Return the scaling with the lowest NLL on a held-out split, and warn if a bound of the search is it.

        Args:
            log_probs: Of every member, (M, N, C).
            labels: Shape (N,), in 0..C-1.
            row: What messages call the model.
            progress: Hears the result.
        """
        found, at_bound = fit_temperature(log_probs, labels)
        count = len(labels)
        progress.step(f"{row}: temperature {found:.4f}, fitted on {counted(count, 'sample')}")
        if at_bound:
            progress.warn(
                f"{row}: the temperature ended at {found:g}, a bound of the search ({LOWEST:g} to {HIGHEST:g}): "
                f"{counted(count, 'held-out sample')} cannot tell it, or the model is not fit for the labels"
            )
        return cls(temperature=found, fitted_on=count)

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Return the scaled log-probabilities of every member, (M, N, C), float32."""
        return log_probs if self.temperature is None else scale_log_probs(log_probs, self.temperature)

    @property
    def values(self) -> dict[str, Value]:
        """What a report says of it."""
        if self.temperature is None:
            return {}
        return {TEMPERATURE: Value(value=self.temperature, count=self.fitted_on)}
