"""The temperature of a row: fitted on held-out data or given, on top of the temperatures that its checkpoints store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from hydractl import progress
from hydractl.errors import InputError
from hydractl.manifest.document import Value
from hydractl.manifest.header import Header, Temperature
from hydractl.manifest.terms import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE
from hydractl.messages import counted
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import TEMPERATURE
from hydractl.metrics.temperature import HIGHEST, LOWEST, Scaled, divisor, fit_temperature, shared_temperature
from hydractl.plugins import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Which temperature a row has: what all its logits are divided by, on top of what its checkpoints store.

    Attributes:
        temperature: None leaves the predictions as they are.
        fitted_on: How many samples; None if it was given.
    """

    temperature: Temperature | None = None
    fitted_on: int | None = None

    @classmethod
    def fit(
        cls,
        predictions: StoredPredictions,
        labels: Tensor,
        *,
        row: str,
        header: Header,
        stored: Sequence[Temperature] = (),
    ) -> Self:
        """Return the scaling that is likeliest after a held-out split, and warn if a bound of the search is it.

        Args:
            predictions: There, by every member.
            labels: Shape (N,), or (N, Q), in 0..C-1.
            row: What messages call the model.
            header: Says the task, which may have temperatures of its own, and the names of the classes.
            stored: The temperatures of the row's checkpoints, as in `values`.
        """
        before = shared_temperature(stored)
        common = Temperature(before.common, of_entities=before.of_entities)
        if before.by_label:  # temperatures of labels are fitted anew, on logits that one divides
            predictions = Scaled(predictions, divisor(common / before))
        fitted = fit_temperature(predictions, labels, stored=common.common)
        temperature, scale = fitted.temperature, Temperature(fitted.temperature)
        if fit := header.architecture.task.temperature:
            scale = load(fit)(predictions, labels, temperature, header, common)
        progress.step(f"{row}: temperature {temperature:.4f}, fitted on {counted(len(labels), 'sample')}")
        if fitted.at_bound:
            progress.warn(
                f"{row}: the fitted temperature is {temperature:g}, a bound of the search ({LOWEST:g} to "
                f"{HIGHEST:g}): check that the labels fit the model; the scale of its logits may be unusual"
            )
        scale = common * scale / before if before.by_label else scale
        return cls(temperature=scale, fitted_on=len(labels))

    def __call__(self, predictions: StoredPredictions) -> StoredPredictions:
        """Return what every member says once its logits are scaled, float32."""
        if self.temperature is None:
            return predictions
        return Scaled(predictions, divisor(self.temperature))

    def on_top_of(self, stored: Sequence[Temperature]) -> Temperature:
        """Return what logits are divided by in all; where the temperatures of a row's checkpoints differ, without them.

        Raises:
            InputError: If no checkpoint may store the result.
        """
        before = shared_temperature(stored)
        total = before if self.temperature is None else before * self.temperature
        if not all(SMALLEST_TEMPERATURE <= number <= LARGEST_TEMPERATURE for number in total.numbers):
            raise InputError(
                f"the stored temperature {before} and the temperature {self.temperature} multiply to {total}, which is outside "
                f"{SMALLEST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}",
                hint="give `--temperature` another value, or leave it out",
            )
        return total

    def values(self, stored: Sequence[Temperature]) -> dict[str, Value]:
        """Return what a report says of it.

        Args:
            stored: The temperatures of the row's checkpoints; where they differ, only what they share is said.
        """
        temperature = self.on_top_of(stored)
        if self.temperature is None and temperature == Temperature():
            return {}
        return {TEMPERATURE: Value(value=temperature.common, count=self.fitted_on)}
