"""Temperature scaling: a number T divides all logits, fitted on held-out labels with a prior around 1.

Guo et al. (2017), section 4.2. A single model predicts softmax(z / T). All members of an ensemble share one
T, which divides their logits before the softmaxes are averaged, as in torch-uncertainty. T minimizes the NLL
of the average. Log-probabilities can replace logits, because log_softmax(log_softmax(z) / T) = log_softmax(z
/ T).

Few samples determine T poorly: if every prediction is correct, the NLL of a single model goes to 0 as T goes
to 0. So T has a prior: ln T is normal with mean 0 and standard deviation 0.5. The fit minimizes the negative
log posterior,

    N NLL(T) + (ln T)^2 / (2 * 0.5^2)

The influence of the prior decreases with N; with a thousand samples it is negligible.

A multi-label model may be overconfident in one label only, so each label q has its own T_q. One label has
less data than all labels together, so ln(T_q / T) has a normal prior with mean 0 and a standard deviation
that all labels share. The deviation is unknown too: a hierarchical model (Gelman et al. 2013, Bayesian Data
Analysis, section 5.4). If labels are similar, the deviation is small and T_q is close to T.

Axes: M members, N samples, Q labels, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from hydractl.manifest.terms import DIGITS, Temperature
from hydractl.metrics.metric_spec import check_labels
from hydractl.metrics.per_sample import Responses, StoredPredictions, at_labels

LOWEST, HIGHEST = 0.05, 20.0
"""Bounds of a fitted temperature. Chosen by hand; a result at a bound is reported, and wider bounds matter
only for such results."""
DEVIATION = 0.5
"""Standard deviation of the prior on ln T. Chosen on resampled splits of 12 models: with 50 samples the mean
NLL decreased, where fits without a prior increased it. Twice the deviation makes the prior four times
weaker."""
LOG_TOLERANCE = 10.0**-DIGITS
"""Tolerance of the search in ln T, equal to the precision of stored temperatures. Twice the tolerance could
change the last stored digit."""
STARTS = 17
"""Number of evenly spaced values of ln T before the local search, 0.37 apart. The NLL may have several
minima. Chosen by hand; twice the number doubles the cost of this step and finds narrower minima."""
LABEL_DEVIATIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Possible standard deviations of ln(T_q / T), with equal prior probability. 0 means a common temperature;
the others double from 5 % to a factor of 5. Chosen by hand; twice each value would miss differences below 10
%."""
LABEL_RANGE, LABEL_STEPS, LABEL_POINTS = 3.0, 61, 3001
"""Maximum of |ln(T_q / T)|, a factor of 20, and the numbers of evenly spaced values at which a label's NLL is
computed and interpolated. Chosen by hand; twice the numbers double the cost of the fit."""
NUMBERS_AT_ONCE = 2**19
"""Maximum number of values in a chunk, 4 MB of float64. Chosen by hand; doubling the limit doubles the memory
and saves no computation."""


@dataclass(frozen=True, slots=True)
class FittedTemperature:
    """Result of the search for a temperature.

    Attributes:
        temperature: The temperature.
        at_bound: Whether the temperature is at a bound of the search, so the optimum may be outside.
    """

    temperature: float
    at_bound: bool


def divisor(temperature: Temperature) -> float | Tensor:
    """Return the divisor of logits (..., C): a number, or a tensor (Q, 1), float64, for label temperatures."""
    by_label = torch.tensor(temperature.by_label, dtype=torch.float64)
    return by_label.unsqueeze(-1) if len(by_label) else temperature.common


def scale_log_probs(member_log_probs: Tensor, temperature: float | Tensor) -> Tensor:
    """Return log_softmax(z / T) of every member.

    Args:
        member_log_probs: Log-probabilities or logits z, shape (M, N, C) or (M, N, Q, C).
        temperature: T > 0; 1 returns the argument. A tensor (Q, 1), float64, has one T per label.

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
    """Return whether a temperature leaves logits unchanged."""
    return not isinstance(temperature, Tensor) and temperature == 1


def scale(responses: Responses, temperature: float | Tensor) -> Responses:
    """Return the predictions with logits divided by T, without scores; arguments as in `scale_log_probs`."""
    log_probs, logsumexp, _ = responses
    scaled = scale_log_probs(log_probs, temperature)
    if logsumexp is None or changes_nothing(temperature):
        return Responses(scaled, logsumexp)
    by_answer = temperature.squeeze(-1) if isinstance(temperature, Tensor) else temperature
    # z / T is the sum of the new log-probability and the new logsumexp. This sum is taken at the largest
    # logit, because its log-probability is never -inf.
    top, scaled_top = log_probs.amax(-1).double(), scaled.amax(-1).double()
    return Responses(scaled, ((logsumexp + top) / by_answer - scaled_top).to(logsumexp.dtype))


@dataclass(frozen=True, slots=True)
class Scaled:
    """Predictions with logits divided by T, computed on request."""

    predictions: StoredPredictions
    temperature: float | Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """As in `StoredPredictions`."""
        return self.predictions.shape

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """As in `StoredPredictions`, for the model at its stored temperature."""
        return self.predictions.scores

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, in chunks of at most `samples` samples."""
        for part in self.predictions.split(samples):
            yield scale(part, self.temperature)

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member, with M = 1."""
        for member_predictions in self.predictions.members():
            yield Scaled(member_predictions, self.temperature)


def scaled_nll(predictions: StoredPredictions | Tensor, labels: Tensor, temperature: float) -> float:
    """Return the mean of -log mean_m softmax(z_m / T)[label] in nats, in float64.

    Args:
        predictions: Finite log-probabilities or logits, shape (M, N, C); (M, N, Q, C) for Q labels or words.
        labels: Shape (N,) or (N, Q), integer, in 0..C-1; negative for padding words.
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
    """Return the common value of all temperatures; a temperature of 1 if they differ or there are none."""
    return temperatures[0] if len({*temperatures}) == 1 else Temperature()


def fit_temperature(
    predictions: StoredPredictions | Tensor,
    labels: Tensor,
    *,
    stored: float = 1.0,
    deviation: float = DEVIATION,
) -> FittedTemperature:
    """Return the temperature in [0.05, 20] at the posterior mode.

    The temperature minimizes N NLL(T) + (ln T)^2 / (2 deviation^2). There may be several minima, so the best
    of 17 values, evenly spaced in ln T, is refined by Brent's bounded search between its neighbours, with
    tolerance 1e-6 in ln T. The result is never worse than the prior's mode, T = 1 / `stored`, in objective
    and NLL. It is the mode if the objective is constant.

    Args:
        predictions: Finite log-probabilities or logits, shape (M, N, C); (M, N, Q, C) for Q labels or words,
            each of which counts as a sample. Read several times.
        labels: Shape (N,) or (N, Q), integer, in 0..C-1; negative for padding words.
        stored: Temperature that already divides the logits. The prior then applies to the product, the
            temperature of the raw logits: ln T is replaced by ln(T `stored`) in the objective.
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
        scipy.optimize.minimize_scalar(
            cost, bounds=bounds, method="bounded", options={"xatol": LOG_TOLERANCE}
        ).x
    )
    neutral = min(max(center, low), high)
    costs = {
        neutral: cost(neutral),
        start: costs[start],
        refined: cost(refined),
    }  # `min` returns the first of equal costs, so a constant objective gives T = 1
    best = min(costs, key=costs.__getitem__)
    for bound in (LOWEST, HIGHEST):
        if abs(best - math.log(bound)) < 2 * LOG_TOLERANCE:
            return FittedTemperature(bound, at_bound=True)
    return FittedTemperature(math.exp(best), at_bound=False)


def fit_label_temperatures(
    predictions: StoredPredictions, labels: Tensor, temperature: float
) -> tuple[float, ...]:
    """Return the temperature T_q of each label.

    ln(T_q / T), in [-3, 3], is the posterior mean in the hierarchical model of the module docstring. The
    likelihood of a label is computed at 61 values and interpolated by a cubic spline. The posterior of ln(T_q
    / T) for each of seven deviations, and the posterior of the deviation given all labels, are sums over 3001
    values. A single label has T.

    Args:
        predictions: Finite log-probabilities or logits, shape (M, N, Q, C). Read once.
        labels: Shape (N, Q), integer, in 0..C-1.
        temperature: T, from `fit_temperature` on the same samples.
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
        log_joint = log_priors - scipy.interpolate.CubicSpline(grid, of_label - of_label.min())(points)
        evidences.append(scipy.special.logsumexp(log_joint, axis=1))
        means.append(np.exp(log_joint - evidences[-1][:, None]) @ points)
    log_weights = np.sum(evidences, axis=0)
    weights = np.exp(log_weights - scipy.special.logsumexp(log_weights))
    return tuple((temperature * np.exp(np.stack(means) @ weights)).tolist())


def _log_prior(points: np.ndarray, deviation: float) -> np.ndarray:
    """Return the log-probabilities (K,) of a normal prior over K values; all mass at 0 for deviation 0."""
    log_density = -((points / deviation) ** 2) / 2 if deviation else np.where(points == 0, 0.0, -np.inf)
    return np.asarray(log_density - scipy.special.logsumexp(log_density))


def _parts(predictions: StoredPredictions | Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield predictions (M, n, C) and labels (n,) in chunks, with each label or word as a sample."""
    responses = Responses(predictions) if isinstance(predictions, Tensor) else predictions
    size = _samples(responses.shape)
    for part, part_labels in zip(responses.split(size), labels.split(size), strict=True):
        yield part.flattened().log_probs, part_labels[part_labels >= 0] if labels.ndim > 1 else part_labels


def _samples(shape: Sequence[int]) -> int:
    """Return the number of samples per chunk."""
    members, _, *classes = shape
    return max(1, NUMBERS_AT_ONCE // math.prod((members, *classes)))
