"""The OOD score `energy+density` of candidates, fitted for each on its own features.

Axes: K candidates, N samples of ID and N' of OOD data, D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hydractl.errors import DataError
from hydractl.metrics.feature_scores import Classifier, FittedScore, Moments, Training, energy_density, fit
from hydractl.metrics.ood_scores import ENERGY_DENSITY, RELATIVE
from hydractl.scoring.circuit.outcomes import SCORE, Outcomes

FEATURES, LABELS = "features", "labels"
"""What is gathered to fit on besides the energy: (K, D, N) and (K, N)."""
LEAST = 4
"""Samples of a class that both halves need two of, or nothing varies within classes."""


def check_halves(labels: Tensor) -> None:
    """Refuse labels (N,) of too few samples to fit on each half, and labels (N, Q) of samples that may have several.

    Raises:
        DataError: If no class has `LEAST` samples.
    """
    if labels.ndim > 1:
        raise DataError(
            f"`--ood-score {ENERGY_DENSITY}`: compares features of classes, but samples may have several labels",
            hint="use an OOD score of logits, such as `--ood-score energy`",
        )
    if not len(labels) or int(labels.bincount().max()) < LEAST:
        raise DataError(
            f"`{ENERGY_DENSITY}` is fitted on each half of the labelled data, but no class has {LEAST} samples",
            hint="give more data to `--data`, or use an OOD score of logits, such as `--ood-score energy`",
        )


def halves(labels: Tensor) -> Tensor:
    """Return which of N samples are in the second half, (N,): every other one of each class."""
    order = labels.argsort(stable=True)
    by_class = labels[order]
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(labels)) - torch.searchsorted(by_class, by_class)
    return ranks % 2 == 1


def to_fit_on(features: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
    """Return what `with_density` needs of candidates' features (K, N, D) and labels (N,), None of OOD data."""
    tensors = {FEATURES: features.float().transpose(1, 2)}
    return tensors if labels is None else tensors | {LABELS: labels.expand(len(features), -1)}


def with_density(outcomes: Outcomes) -> Outcomes:
    """Return outcomes whose score is `energy+density`, of those whose score is the energy, with `FEATURES` and `LABELS`.

    As `fuse --fit --val` fits it: the density on one half of the ID data, and the standard deviations on the other, which
    it then scores. Either half is fitted on once; OOD samples have the mean of both scores.
    """
    inside, outside = dict(outcomes.inside), dict(outcomes.outside)
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
    """Return a candidate's scores (N,) and (N',), float64."""
    scores, ood_scores = torch.zeros_like(energies), torch.zeros_like(ood_energies)
    second = halves(labels)
    for held_out in (second, ~second):
        try:
            fitted = _fit(features, energies, labels, held_out)
        except DataError:  # a candidate whose features or energies are all the same tells nothing apart
            return torch.zeros_like(energies), torch.zeros_like(ood_energies)
        scores[held_out] = fitted(features[held_out], _as_logits(energies[held_out]))
        ood_scores += fitted(ood_features, _as_logits(ood_energies)) / 2
    return scores, ood_scores


def _fit(features: Tensor, energies: Tensor, labels: Tensor, held_out: Tensor) -> FittedScore:
    """Return the score that is fitted on what is not held out, and standardized on what is."""
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
