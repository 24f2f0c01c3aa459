"""How strange is a sample? OOD scores of one model or of an ensemble: the higher, the more OOD.

Every score maps its members' logits, or their log-probabilities, (M, ..., C) to (...); M = 1 is a single model. Importing this
module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MSP = "msp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One OOD score.

    Attributes:
        name: As options and reports have it.
        definition: One sentence, with its source.
        compute: Maps what the members say, (M, ..., C), to scores (...).
        raw: Whether it reads logits; else their log-softmax, which forgets how large they are.
        several: Whether it is about several members: of a single model it is 0 everywhere.
        low: The least value it may have.
        high: The greatest one.
    """

    name: str
    definition: str
    compute: Callable[[Tensor], Tensor]
    raw: bool = False
    several: bool = False
    low: float = -math.inf
    high: float = math.inf

    def of(self, logits: Tensor) -> Tensor:
        """Return the scores (...) of finite member logits (M, ..., C)."""
        return self.compute(logits if self.raw else logits.log_softmax(-1))


def msp(log_probs: Tensor) -> Tensor:
    """Return the negated largest mean probability -max_c mean_m p_mc, in [-1, 0] (Hendrycks and Gimpel 2017, section 2)."""
    return -_mean(log_probs).exp().amax(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of the mean probabilities, H(mean_m p_m), in nats, in [0, ln C].

    torch-uncertainty's criterion of that name is the mean of the members' entropies instead.
    """
    return _entropy(_mean(log_probs))


def mutual_information(log_probs: Tensor) -> Tensor:
    """Return H(mean_m p_m) - mean_m H(p_m), in nats, in [0, ln M] (Depeweg et al. 2018, eq. 4); rounding below 0 is clamped.

    0 everywhere for a single model, of which every ranking metric then says what chance is.
    """
    return (_entropy(_mean(log_probs)) - _entropy(log_probs).mean(0)).clamp(min=0)


def energy(logits: Tensor) -> Tensor:
    """Return the mean of the members' energies -log Σ_c exp z_mc at temperature 1 (Liu et al. 2020, eq. 3).

    torch-uncertainty takes the energy of the mean logits instead; for one model the two are the same.
    """
    return -logits.logsumexp(-1).mean(0)


def max_logit(logits: Tensor) -> Tensor:
    """Return the negated largest mean logit -max_c mean_m z_mc, as torch-uncertainty (Hendrycks et al. 2022, section 3.2)."""
    return -logits.mean(0).amax(-1)


def _mean(log_probs: Tensor) -> Tensor:
    from hydractl.metrics.samples import ensemble_log_probs  # noqa: PLC0415 - the table loads without torch

    return ensemble_log_probs(log_probs)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


_TABLE = (
    Score(
        name=MSP,
        definition="Negated largest of the members' mean probabilities (Hendrycks and Gimpel 2017).",
        compute=msp,
        low=-1.0,
        high=0.0,
    ),
    Score(
        name="entropy",
        definition="Entropy of the members' mean probabilities, in nats.",
        compute=entropy,
        low=0.0,
    ),
    Score(
        name="mi",
        definition="Mutual information: entropy of the members' mean probabilities less the mean of the members' "
        "entropies, in nats; 0 for one member (Depeweg et al. 2018).",
        compute=mutual_information,
        low=0.0,
        several=True,
    ),
    Score(
        name="energy",
        definition="Mean over members of the energy, the negated logsumexp of a member's logits (Liu et al. 2020).",
        compute=energy,
        raw=True,
    ),
    Score(
        name="max-logit",
        definition="Negated largest of the members' mean logits (Hendrycks et al. 2022).",
        compute=max_logit,
        raw=True,
    ),
)

SCORES: Mapping[str, Score] = MappingProxyType({score.name: score for score in _TABLE})
"""Every score by name; of one model they are OpenOOD's but for the sign."""

OF_ONE = tuple(name for name, score in SCORES.items() if not score.several)
"""The names of those that tell the samples of a single model apart."""


def number_name(metric: str, score: str, scores: Sequence[str]) -> str:
    """Return what a report calls a ranking metric by one of its scores: by the first one the metric's name alone."""
    return metric if score == scores[0] else f"{metric}@{score}"
