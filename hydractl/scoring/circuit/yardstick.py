"""What a circuit is valued by, and what of its answers that reads.

Axes: k candidates, B batch, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from hydractl.families.tower import Model
from hydractl.metrics.ood_scores import ENERGY_DENSITY
from hydractl.scoring.circuit.density import FEATURES, LABELS, to_fit_on, with_density
from hydractl.scoring.circuit.objective import Objective
from hydractl.scoring.circuit.outcomes import Outcomes, outcomes_of, outcomes_read, traits_of, values_of
from hydractl.scoring.job import Features


class Yardstick(NamedTuple):
    """An objective, the OOD score where it reads one, and the features of the model where the score reads them."""

    objective: Objective
    ood_score: str
    features: Features | None = None

    @property
    def needs_features(self) -> bool:
        """Whether the objective uses an OOD score of features."""
        return self.objective.needs_ood and self.ood_score == ENERGY_DENSITY

    def answers(self, model: Model, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (k, B, C) of towers' outputs (k or 1, N, F), with features (k, B, C + D) where they are read."""
        logits: torch.Tensor = model.answer(outputs)
        if self.features is None:
            return logits
        features = self.features.features_of(outputs).expand(len(logits), -1, -1)
        return torch.cat([logits, features], dim=-1)

    def logits(self, answers: torch.Tensor) -> torch.Tensor:
        """Return the logits (..., C) of answers."""
        return answers if self.features is None else answers[..., : -self.features.width]

    def names(self, *, labelled: bool) -> tuple[str, ...]:
        """Return the names of what `outcomes` returns."""
        fitted_on = () if self.features is None else (FEATURES, LABELS) if labelled else (FEATURES,)
        return (*outcomes_read(self.objective, labelled=labelled), *fitted_on)

    def outcomes(self, answers: torch.Tensor, labels: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what the objective reads of answers, each (k, B), and what a score is to be fitted on."""
        outcomes = outcomes_of(self.logits(answers), labels, self.objective, self.ood_score)
        if self.features is not None:
            outcomes |= to_fit_on(answers[..., -self.features.width :], labels)
        return outcomes

    def traits(self, answers: torch.Tensor, labels: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return what outcomes follow from: see `traits_of`."""
        return traits_of(self.logits(answers), labels, self.objective, self.ood_score)

    def fitted(self, outcomes: Outcomes) -> Outcomes:
        """Return the outcomes of all samples, with the score that is fitted on them where there is one."""
        return outcomes if self.features is None else with_density(outcomes)

    def values(self, outcomes: Outcomes) -> torch.Tensor:
        """Return the objective's values (k,) of fitted outcomes: see `values_of`."""
        return values_of(self.objective, outcomes)
