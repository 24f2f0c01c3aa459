"""Predictions of candidate models, the OOD score `energy+density` fitted on them, and objectives.

Axes: K or k candidates, N ID samples, N' OOD samples, B batch, Q labels or words of a sample, C classes, D
features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.errors import DataError
from hydractl.families.tower import Model
from hydractl.metrics.feature_scores import Classifier, FittedScore, Moments, Training, energy_density, fit
from hydractl.metrics.ood_scores import ENERGY, ENERGY_DENSITY, MSP, RELATIVE, SCORES
from hydractl.metrics.per_sample import at_labels, places
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.scoring.objective import TERMS, Objective

HITS, NLL, CONFIDENCE, SCORE = "hits", "nll", "confidence", "score"
SINGLE_LABEL_AXES = 3
"""Number of axes of logits for samples with one label."""
MIN_PROBABILITY = 1e-15
"""Distance of a probability from 0 and 1 in log odds, which would otherwise be infinite. Chosen by hand,
slightly above the float64 rounding of 1; doubling it changes only extreme probabilities."""


class Outcomes(NamedTuple):
    """Predictions of K candidates, reduced to the values of an objective.

    All tensors have shape (K, N), or (K, N') for OOD data. `hits` (boolean) is whether the prediction is
    correct, `confidence` (float64) the largest probability, `nll` (float64) in nats, and `score` (float64)
    the OOD score.

    Attributes:
        id: Tensors of ID data by name.
        ood: Tensors of OOD data by name: only `score`.
    """

    id: Mapping[str, torch.Tensor]
    ood: Mapping[str, torch.Tensor]


def outcomes_read(objective: Objective, *, labelled: bool) -> tuple[str, ...]:
    """Return the names of the outcomes that an objective uses of ID data (`labelled`) or OOD data."""
    answers = [name for name in (HITS, CONFIDENCE, NLL) if labelled and name in objective.outcome_names]
    return (*answers, *((SCORE,) if objective.needs_ood else ()))


def outcomes_of(
    logits: torch.Tensor, labels: torch.Tensor | None, objective: Objective, ood_score: str
) -> dict[str, torch.Tensor]:
    """Return the outcomes that an objective uses, by name.

    Probabilities are float64, because in float32 many of a trained model's probabilities would be equal to 1.

    Args:
        logits: Shape (K, B, C), or (K, B, Q, C) with NaN for missing words.
        labels: Shape (B,) or (B, Q); None for OOD data, with the OOD score as the only result.
        objective: The objective.
        ood_score: Name of the OOD score.

    Returns:
        Shape (K, B) each. With Q labels or words, each label or existing word is a column; the OOD score is
        the mean over labels or words.
    """
    exact, names = logits.double(), outcomes_read(objective, labelled=labels is not None)
    outcomes: dict[str, torch.Tensor] = {}
    if HITS in names or (SCORE in names and ood_score == MSP):
        probs, classes = exact.softmax(dim=-1).max(dim=-1)
        # Rounding can make the largest softmax term exceed 1.
        outcomes = {CONFIDENCE: probs.clamp(max=1.0), SCORE: -probs}
        if labels is not None:
            outcomes[HITS] = classes == labels
    if SCORE in names and ood_score != MSP:
        outcomes[SCORE] = _of_logits(ood_score, exact)
    if labels is not None and NLL in names:
        outcomes[NLL] = -at_labels(exact.log_softmax(dim=-1), labels.clamp(min=0))
    return {name: _of_samples(name, outcomes[name], exact) for name in names}


def traits_of(
    logits: torch.Tensor, labels: torch.Tensor | None, objective: Objective, ood_score: str
) -> dict[str, torch.Tensor]:
    """Return the traits: outcomes on scales on which the effects of heads are nearly additive.

    `hits` becomes the logit of the label minus the largest other logit. Probabilities become log odds.
    Arguments and shapes are those of `outcomes_of`; traits are float32.
    """
    exact, names = logits.double(), outcomes_read(objective, labelled=labels is not None)
    traits: dict[str, torch.Tensor] = {}
    if CONFIDENCE in names or (SCORE in names and ood_score == MSP):
        traits = dict.fromkeys((CONFIDENCE, SCORE), _odds(exact, exact.argmax(dim=-1, keepdim=True)))
        if exact.ndim > SINGLE_LABEL_AXES:
            traits[SCORE] = traits[SCORE].sigmoid().nanmean(-1).logit(eps=MIN_PROBABILITY)
    if SCORE in names and ood_score != MSP:
        traits[SCORE] = _of_logits(ood_score, exact)
    if labels is not None:
        label_index = labels.clamp(min=0).expand(exact.shape[:-1]).unsqueeze(-1)
        best_other = exact.scatter(-1, label_index, float("-inf")).amax(dim=-1)
        traits |= {
            HITS: exact.gather(-1, label_index).squeeze(-1) - best_other,
            NLL: _odds(exact, label_index),
        }
    return {name: _of_samples(name, traits[name], exact).float() for name in names}


def _of_samples(name: str, values: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return values (K, N) for values (K, B), or (K, B, Q) without missing words.

    The OOD score is averaged over labels or words instead.
    """
    if values.ndim < SINGLE_LABEL_AXES:
        return values
    return values.nanmean(-1) if name == SCORE else values[:, ~logits[0, ..., 0].isnan()]


def outcomes_from_traits(traits: Outcomes, ood_score: str) -> Outcomes:
    """Return the outcomes for traits; the inverse of `traits_of`."""
    undo: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        HITS: lambda x: x > 0,
        NLL: lambda x: torch.nn.functional.softplus(-x),
        CONFIDENCE: torch.sigmoid,
        SCORE: (lambda x: -x.sigmoid()) if ood_score == MSP else (lambda x: x),
    }
    inside, outside = ({n: undo[n](x.double()) for n, x in part.items()} for part in traits)
    return Outcomes(inside, outside)


def _of_logits(ood_score: str, logits: torch.Tensor) -> torch.Tensor:
    """Return an OOD score of logits; the energy for `energy+density`."""
    return SCORES[ENERGY if ood_score == ENERGY_DENSITY else ood_score].of(logits.unsqueeze(0))


def _odds(logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return log p / (1 - p) of the classes `at` (..., 1), shape (...)."""
    other_classes = logits.scatter(-1, at, float("-inf")).logsumexp(dim=-1)
    return logits.gather(-1, at).squeeze(-1) - other_classes


def objective_values(objective: Objective, outcomes: Outcomes) -> torch.Tensor:
    """Return the objective of K candidates, shape (K,), float64, on the CPU; higher is better."""
    sample = dict(outcomes.id)
    if objective.needs_ood:
        sample |= places(outcomes.id[SCORE], outcomes.ood[SCORE])
    parts = [t.factor * torch.as_tensor(TERMS[t.name].of(sample)).cpu() for t in objective.terms]
    return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


def first_best(values: Sequence[float]) -> int:
    """Return the index of the first maximum: Algorithm 1 replaces the best head only by a better head."""
    return max(range(len(values)), key=values.__getitem__)


FEATURES, LABELS = "features", "labels"
"""Names of the tensors for the fit in addition to the energy, of shape (K, D, N) and (K, N)."""
MIN_CLASS_SAMPLES = 4
"""Minimum number of samples of the largest class. Each half needs two of them for a variance within
classes."""


def check_halves(labels: Tensor) -> None:
    """Raise if samples have several labels, or no class has enough samples for a fit on each half.

    Args:
        labels: Shape (N,), or (N, Q) for several labels.

    Raises:
        DataError: If labels have two axes, or no class has `MIN_CLASS_SAMPLES` samples.
    """
    if labels.ndim > 1:
        raise DataError(
            f"`--ood-score {ENERGY_DENSITY}`: compares features of classes, but samples may have several labels",
            hint="use an OOD score of logits, such as `--ood-score energy`",
        )
    if not len(labels) or int(labels.bincount().max()) < MIN_CLASS_SAMPLES:
        raise DataError(
            f"`{ENERGY_DENSITY}` is fitted on each half of the labelled data, but no class has {MIN_CLASS_SAMPLES} samples",
            hint="give more data to `--data`, or use an OOD score of logits, such as `--ood-score energy`",
        )


def second_half_mask(labels: Tensor) -> Tensor:
    """Return whether each of N samples is in the second half, shape (N,): every other sample of each class."""
    order = labels.argsort(stable=True)
    by_class = labels[order]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(labels)) - torch.searchsorted(by_class, by_class)
    return ranks % 2 == 1


def density_inputs(features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """Return the tensors for `with_density`: `features` (K, D, N), and `labels` (K, N) for ID data.

    Args:
        features: Features of candidates, shape (K, N, D).
        labels: Shape (N,); None for OOD data.
    """
    tensors = {FEATURES: features.float().transpose(1, 2)}
    return tensors if labels is None else tensors | {LABELS: labels.expand(len(features), -1)}


def with_density(outcomes: Outcomes) -> Outcomes:
    """Return outcomes with the OOD score `energy+density`, fitted for each candidate like `fuse --train --val`.

    The density is fitted on a half of the ID data, then standardized on the other half and applied to the
    other half; then the halves are exchanged. OOD samples get the mean of both scores.

    Args:
        outcomes: Outcomes with the energy as score, and with `FEATURES` and `LABELS`.
    """
    inside, outside = dict(outcomes.id), dict(outcomes.ood)
    labels = inside.pop(LABELS)[0]
    parts = [
        part
        for of_role in (inside, outside)
        for part in (of_role.pop(FEATURES).transpose(1, 2), of_role[SCORE])
    ]
    scores = [_scores(*candidate, labels=labels) for candidate in zip(*parts, strict=True)]
    inside[SCORE], outside[SCORE] = (torch.stack(part) for part in zip(*scores, strict=True))
    return Outcomes(inside, outside)


def _scores(
    features: Tensor, energies: Tensor, ood_features: Tensor, ood_energies: Tensor, *, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the scores of one candidate, shapes (N,) and (N',), float64."""
    scores, ood_scores = torch.zeros_like(energies), torch.zeros_like(ood_energies)
    second = second_half_mask(labels)
    for held_out in (second, ~second):
        try:
            fitted = _fit(features, energies, labels, held_out)
        except DataError:  # Constant features or energies cannot separate samples, so all scores are equal.
            return torch.zeros_like(energies), torch.zeros_like(ood_energies)
        scores[held_out] = fitted(features[held_out], _as_logits(energies[held_out]))
        ood_scores += fitted(ood_features, _as_logits(ood_energies)) / 2
    return scores, ood_scores


def _fit(features: Tensor, energies: Tensor, labels: Tensor, held_out: Tensor) -> FittedScore:
    """Return the score fitted on the other samples and standardized on the samples of `held_out`."""
    moments = Moments(int(labels.max()) + 1, features.shape[1], normalized=True)
    moments.add(features[~held_out], labels[~held_out])
    nothing = features[:0]
    training = Training(
        classifier=Classifier(nothing, nothing), moments={True: moments}, features=nothing, largest=nothing
    )
    density = fit(RELATIVE, training)
    densities = density(features[held_out], _as_logits(energies[held_out]))
    return energy_density(density, energies[held_out], densities)


def _as_logits(energies: Tensor) -> Tensor:
    """Return logits (N, 1) of a single class with these energies."""
    return -energies.unsqueeze(1)


class ObjectiveEvaluator(NamedTuple):
    """Objective, its OOD score, and the feature extractor of the model.

    Attributes:
        objective: The objective.
        ood_score: Name of the OOD score; unused if the objective has none.
        features: Feature extractor for scores of features, or None.
    """

    objective: Objective
    ood_score: str
    features: FeatureExtractor | None = None

    @property
    def needs_features(self) -> bool:
        """Whether the objective uses an OOD score of features."""
        return self.objective.needs_ood and self.ood_score == ENERGY_DENSITY

    def answers(self, model: Model, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return logits (k, B, C), or (k, B, C + D) with features, of outputs of towers (k or 1, N, F)."""
        logits: torch.Tensor = model.answer(outputs)
        if self.features is None:
            return logits
        return torch.cat([logits, self.features.features_of(outputs).expand(len(logits), -1, -1)], dim=-1)

    def logits(self, answers: torch.Tensor) -> torch.Tensor:
        """Return the logits (..., C) of answers."""
        return answers if self.features is None else answers[..., : -self.features.width]

    def names(self, *, labelled: bool) -> tuple[str, ...]:
        """Return the names of the tensors of `outcomes`, for ID data (`labelled`) or OOD data."""
        fitted_on = () if self.features is None else (FEATURES, LABELS) if labelled else (FEATURES,)
        return (*outcomes_read(self.objective, labelled=labelled), *fitted_on)

    def outcomes(self, answers: torch.Tensor, labels: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the outcomes of answers, each (k, B), and the tensors for the fit of the OOD score."""
        outcomes = outcomes_of(self.logits(answers), labels, self.objective, self.ood_score)
        if self.features is not None:
            outcomes |= density_inputs(answers[..., -self.features.width :], labels)
        return outcomes

    def traits(self, answers: torch.Tensor, labels: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the traits of answers, see `traits_of`."""
        return traits_of(self.logits(answers), labels, self.objective, self.ood_score)

    def fitted(self, outcomes: Outcomes) -> Outcomes:
        """Return outcomes of all samples with the fitted OOD score, if the score needs a fit."""
        return outcomes if self.features is None else with_density(outcomes)

    def values(self, outcomes: Outcomes) -> torch.Tensor:
        """Return the objective (k,) of fitted outcomes, see `objective_values`."""
        return objective_values(self.objective, outcomes)
