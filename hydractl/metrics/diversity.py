"""Disagreement of members, and uncertainty of the ensemble.

Axes: M members, N samples, C classes. Importing this module does not load torch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hydractl.metrics.metric_spec import Metric, MetricNeeds, Unit, check_probs

if TYPE_CHECKING:
    from torch import Tensor


def mutual_information(member_probs: Tensor) -> float:
    """Return the mutual information between prediction and member in nats, mean over samples, in [0, ln M].

    H(mean_m p_m) - mean_m H(p_m), the generalised Jensen-Shannon divergence (Depeweg et al. 2018, eq. 4). A
    mean below 0 from rounding is set to 0.

    Args:
        member_probs: Shape (M, N, C), rows summing to 1.

    Raises:
        ValueError: If the shape or a value is out of range.
    """
    check_probs(member_probs, dims=3)
    probs = member_probs.double()
    gain = _entropy(probs.mean(0)) - _entropy(probs).mean(0)
    return max(0.0, float(gain.mean()))


def disagreement(member_probs: Tensor) -> float:
    """Return the fraction of member pairs with different predictions, mean over samples, in [0, 1].

    A single member gives 0. Of equal probabilities the lowest class index is the prediction.

    Args:
        member_probs: Shape (M, N, C), rows summing to 1.

    Raises:
        ValueError: If the shape or a value is out of range.
    """
    check_probs(member_probs, dims=3)
    members, samples, _ = member_probs.shape
    if members == 1:
        return 0.0
    votes = member_probs.argmax(2)
    # The comparison counts every pair twice; a member never differs from itself.
    differing = int((votes[:, None] != votes[None]).sum())
    return differing / (members * (members - 1) * samples)


def predictive_entropy(member_probs: Tensor) -> float:
    """Return the entropy of the members' mean prediction in nats, mean over samples, in [0, ln C].

    Args:
        member_probs: Shape (M, N, C), rows summing to 1.

    Raises:
        ValueError: If the shape or a value is out of range.
    """
    check_probs(member_probs, dims=3)
    return float(_entropy(member_probs.double().mean(0)).mean())


def _entropy(probs: Tensor) -> Tensor:
    """Return the entropy over the last axis in nats, with 0 ln 0 = 0."""
    return 0 - probs.xlogy(probs).sum(-1)  # subtraction from 0, because negation would return -0.0


_diverse = partial(Metric, needs=MetricNeeds.MEMBERS, arguments=("member_probs",))

DIVERSITY = (
    _diverse(
        name="mutual_information",
        column="MI",
        definition="Entropy of the members' mean prediction minus the members' mean entropy, mean over samples "
        "(Depeweg et al. 2018).",
        unit=Unit.NATS,
        compute=mutual_information,
    ),
    _diverse(
        name="disagreement",
        column="DI",
        definition="Share of member pairs that predict different classes, mean over samples.",
        unit=Unit.SHARE,
        high=1.0,
        compute=disagreement,
    ),
    _diverse(
        name="entropy",
        definition="Entropy of the members' mean prediction, mean over samples.",
        unit=Unit.NATS,
        compute=predictive_entropy,
    ),
)
