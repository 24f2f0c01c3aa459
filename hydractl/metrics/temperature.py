"""Temperature scaling: a number T that divides all logits, fitted on held-out labelled data with a prior around 1.

Guo et al. (2017), section 4.2. A single model predicts softmax(z / T). The members of an ensemble share one T: their
logits are divided by it before the softmaxes are averaged, as in torch-uncertainty, and T minimizes the NLL of that
average. Log-probabilities can replace logits, because log_softmax(log_softmax(z) / T) = log_softmax(z / T).

Few samples determine T poorly: if every prediction is correct, the NLL of a single model goes to 0 as T goes to 0. So T
has a prior: ln T is normal with mean 0 and standard deviation 0.5. The fit minimizes the negative log posterior,

    N NLL(T) + (ln T)^2 / (2 * 0.5^2)

The influence of the prior decreases with N; with a thousand samples it is negligible.

A model for several labels may be overconfident in one and not in another, so each label q has a T_q of its own. The samples of
one label say less than those of all, so ln(T_q / T) is normal with mean 0 and a deviation that all labels share and that is not
known either: a hierarchical model (Gelman et al. 2013, Bayesian Data Analysis, section 5.4). Where labels are alike the
deviation is small, and T_q is T.

Axes: M members, N samples, Q labels, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor

from hydractl.manifest.terms import DIGITS, Temperature
from hydractl.metrics.metric_spec import check_labels
from hydractl.metrics.per_sample import Responses, StoredPredictions, at_labels

LOWEST, HIGHEST = 0.05, 20.0
DEVIATION = 0.5
"""Standard deviation of the prior on ln T."""
LOG_TOLERANCE = 10.0**-DIGITS
STARTS = 17
LABEL_DEVIATIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Standard deviations of ln(T_q / T), each as likely as the others before a sample is seen."""
LABEL_RANGE, LABEL_STEPS, LABEL_POINTS = 3.0, 61, 3001
"""Largest |ln(T_q / T)|; where its NLL is computed, and where it is interpolated, evenly spaced."""
NUMBERS_AT_ONCE = 2**19  # in float64


@dataclass(frozen=True, slots=True)
class FittedTemperature:
    """A temperature, and whether it is a bound of the search, so that the optimum may be outside."""

    temperature: float
    at_bound: bool


def divisor(temperature: Temperature) -> float | Tensor:
    """Return what logits (..., C) are divided by; a tensor (Q, 1), float64, where labels have temperatures of their own."""
    by_label = torch.tensor(temperature.by_label, dtype=torch.float64)
    return by_label.unsqueeze(-1) if len(by_label) else temperature.common


def scale_log_probs(member_log_probs: Tensor, temperature: float | Tensor) -> Tensor:
    """Return log_softmax(z / T) of every member.

    Args:
        member_log_probs: Shape (M, N, C) or (M, N, Q, C), natural logarithms of probabilities: log_softmax(z) serves as well as z.
        temperature: T > 0; 1 changes nothing. Of Q labels perhaps one each, (Q, 1), float64.

    Returns:
        Shape and dtype as given, computed in float64.

    Raises:
        ValueError: If T is not positive, or not finite.
    """
    if not all(math.isfinite(t) and t > 0 for t in torch.as_tensor(temperature).flatten().tolist()):
        raise ValueError(f"a temperature must be positive and finite, got {temperature}")
    if changes_nothing(temperature):
        return member_log_probs
    scaled = torch.empty_like(member_log_probs)
    size = _samples(member_log_probs.shape)
    for target, part in zip(scaled.split(size, 1), member_log_probs.split(size, 1), strict=True):
        target.copy_((part.double() / temperature).log_softmax(-1))
    return scaled


def changes_nothing(temperature: float | Tensor) -> bool:
    """Return whether logits stay what they are."""
    return not isinstance(temperature, Tensor) and temperature == 1


def scale(responses: Responses, temperature: float | Tensor) -> Responses:
    """Return the predictions with logits divided by T; arguments as in `scale_log_probs`."""
    log_probs, logsumexp, _ = responses
    scaled = scale_log_probs(log_probs, temperature)
    if logsumexp is None or changes_nothing(temperature):
        return Responses(scaled, logsumexp)
    by_answer = temperature.squeeze(-1) if isinstance(temperature, Tensor) else temperature
    # z / T is what it was, and at the largest logit both of its parts are known
    top, scaled_top = log_probs.amax(-1).double(), scaled.amax(-1).double()
    return Responses(scaled, ((logsumexp + top) / by_answer - scaled_top).to(logsumexp.dtype))


@dataclass(frozen=True, slots=True)
class Scaled:
    """Predictions with logits divided by T, computed lazily."""

    predictions: StoredPredictions
    temperature: float | Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """As of `StoredPredictions`."""
        return self.predictions.shape

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """As of `StoredPredictions`, for the model at its stored temperature."""
        return self.predictions.scores

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, with at most so many samples at a time."""
        for part in self.predictions.split(samples):
            yield scale(part, self.temperature)

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member separately, M = 1."""
        for member_predictions in self.predictions.members():
            yield Scaled(member_predictions, self.temperature)


def scaled_nll(predictions: StoredPredictions | Tensor, labels: Tensor, temperature: float) -> float:
    """Return the mean of -log mean_m softmax(z_m / T)[label] in nats, in float64.

    Args:
        predictions: Finite natural logarithms, or logits, (M, N, C); of models that answer Q labels or words (M, N, Q, C).
        labels: Shape (N,), or (N, Q), integer, in 0..C-1; below 0 for words that a text has not.
        temperature: T > 0.
    """
    members, count = predictions.shape[0], int((labels >= 0).sum())
    total = 0.0
    for part, part_labels in _parts(predictions, labels):
        logits = part.double() / temperature
        right = (at_labels(logits, part_labels.long()) - logits.logsumexp(2)).logsumexp(0)
        total -= float(right.sum())
    return total / count + math.log(members)


def shared_temperature(temperatures: Sequence[Temperature]) -> Temperature:
    """Return the common value of temperatures; 1 if they differ."""
    return temperatures[0] if len({*temperatures}) == 1 else Temperature()


def fit_temperature(
    predictions: StoredPredictions | Tensor,
    labels: Tensor,
    *,
    stored: float = 1.0,
    deviation: float = DEVIATION,
) -> FittedTemperature:
    """Return the temperature in [0.05, 20] that minimizes N NLL(T) + (ln T)^2 / (2 deviation^2), the posterior mode.

    There may be several minima: the best of 17 values, evenly spaced in log T, is refined by Brent's bounded search between its
    neighbours, until log T is known to 1e-6. The result is never worse than T = 1, in objective and NLL. T is 1 if the
    objective is constant.

    If logits are already divided by a stored temperature, the prior applies to the product, the temperature of the raw
    logits.

    Args:
        predictions: Finite natural logarithms, or logits, (M, N, C); of models that answer Q labels or words (M, N, Q, C), each
            of which is a sample; read several times.
        labels: Shape (N,), or (N, Q), integer, in 0..C-1; below 0 for words that a text has not.
        stored: Temperature that the logits are already divided by.
        deviation: Standard deviation of the prior on ln T; infinite for no prior.

    Raises:
        ValueError: If a shape is wrong or empty, a value is not finite or a label is out of range.
    """
    if len(predictions.shape) != labels.ndim + 2 or not math.prod(predictions.shape):
        raise ValueError(
            f"predictions must have {labels.ndim + 2} non-empty axes, got shape {tuple(predictions.shape)}"
        )
    label_list = (
        labels if labels.shape != predictions.shape[1:-1] or labels.ndim == 1 else labels[labels >= 0]
    )
    samples = len(label_list) if labels.ndim > 1 else predictions.shape[1]
    check_labels(label_list, samples=samples, classes=predictions.shape[-1])
    if not all(bool(part.isfinite().all()) for part, _ in _parts(predictions, labels)):
        raise ValueError("predictions must be finite")

    def cost(log_t: float) -> float:
        nll = scaled_nll(predictions, labels, math.exp(log_t))
        return len(label_list) * nll + ((log_t - center) / deviation) ** 2 / 2

    low, high = math.log(LOWEST), math.log(HIGHEST)
    center = -math.log(stored)
    width = (high - low) / (STARTS - 1)
    costs = {log_t: cost(log_t) for log_t in (low + width * i for i in range(STARTS))}
    start = min(costs, key=costs.__getitem__)
    bounds = (max(start - width, low), min(start + width, high))
    refined = float(
        minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": LOG_TOLERANCE}).x
    )
    neutral = min(max(center, low), high)
    costs = {
        neutral: cost(neutral),
        start: costs[start],
        refined: cost(refined),
    }  # the first of equals is taken
    best = min(costs, key=costs.__getitem__)
    for bound in (LOWEST, HIGHEST):
        if abs(best - math.log(bound)) < 2 * LOG_TOLERANCE:
            return FittedTemperature(bound, at_bound=True)
    return FittedTemperature(math.exp(best), at_bound=False)


def fit_label_temperatures(
    predictions: StoredPredictions, labels: Tensor, temperature: float
) -> tuple[float, ...]:
    """Return the temperature T_q of each label: ln(T_q / T), between -3 and 3, is its posterior mean in the hierarchical model above.

    Its likelihood is that of the label's NLL, computed at 61 values and interpolated by a cubic spline. The posterior of
    ln(T_q / T) under each of seven deviations, and that of the deviation given all labels, are sums over 3001 values. A single
    label has T.

    Args:
        predictions: Finite natural logarithms, or logits, (M, N, Q, C); read once.
        labels: Shape (N, Q), integer, in 0..C-1.
        temperature: T, as `fit_temperature` finds it on the same samples.
    """
    count = labels.shape[1]
    if count == 1:
        return (temperature,)
    grid = np.linspace(-LABEL_RANGE, LABEL_RANGE, LABEL_STEPS)
    costs, size = np.zeros((LABEL_STEPS, count)), _samples(predictions.shape)
    for part, part_labels in zip(predictions.split(size), labels.split(size), strict=True):
        log_probs = part.log_probs.double()
        for i, ln_ratio in enumerate(grid):
            logits = log_probs / (temperature * math.exp(ln_ratio))
            right = at_labels(logits, part_labels.long()) - logits.logsumexp(-1)
            costs[i] -= right.logsumexp(0).sum(0).numpy()
    points = np.linspace(-LABEL_RANGE, LABEL_RANGE, LABEL_POINTS)
    log_priors = np.stack([_log_prior(points, deviation) for deviation in LABEL_DEVIATIONS])
    evidences, means = [], []
    for of_label in costs.T:
        log_joint = log_priors - CubicSpline(grid, of_label - of_label.min())(points)
        evidences.append(logsumexp(log_joint, axis=1))
        means.append(np.exp(log_joint - evidences[-1][:, None]) @ points)
    log_weights = np.sum(evidences, axis=0)
    weights = np.exp(log_weights - logsumexp(log_weights))
    return tuple((temperature * np.exp(np.stack(means) @ weights)).tolist())


def _log_prior(points: np.ndarray, deviation: float) -> np.ndarray:
    """Return the logarithms (K,) of a normal distribution with mean 0 over values (K,), which sums to one; all of it at 0 without deviation."""
    log_density = -((points / deviation) ** 2) / 2 if deviation else np.where(points == 0, 0.0, -np.inf)
    return np.asarray(log_density - logsumexp(log_density))


def _parts(predictions: StoredPredictions | Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield predictions (M, n, C) and labels (n,) in chunks of samples; each of the labels or words of a sample is one."""
    responses = Responses(predictions) if isinstance(predictions, Tensor) else predictions
    size = _samples(responses.shape)
    for part, part_labels in zip(responses.split(size), labels.split(size), strict=True):
        yield part.flattened().log_probs, part_labels[part_labels >= 0] if labels.ndim > 1 else part_labels


def _samples(shape: Sequence[int]) -> int:
    """Return the number of samples of a chunk."""
    members, _, *classes = shape
    return max(1, NUMBERS_AT_ONCE // math.prod((members, *classes)))
