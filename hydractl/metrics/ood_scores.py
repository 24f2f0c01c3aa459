"""How strange is a sample? OOD scores of one model or of an ensemble: the higher, the more OOD.

Most map members' logits, or their log-probabilities, (M, ..., C) to (...); M = 1 is a single model. Others look at features, and
are fitted on training data first: `fitted`. Importing this module loads no torch.
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
        of_single_model: What it is of a single model, if it is about several members and so tells nothing more there.
        low: The least value it may have.
        high: The greatest one.
    """

    name: str
    definition: str
    compute: Callable[[Tensor], Tensor]
    raw: bool = False
    of_single_model: str = ""
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


def msp_and_information(log_probs: Tensor) -> Tensor:
    """Return `msp` plus `mutual_information`: how unsure the ensemble is, and how much its members disagree, in [-1, ln M].

    A plain sum, without a weight to tune; of a single model it is `msp`.
    """
    return msp(log_probs) + mutual_information(log_probs)


def _mean(log_probs: Tensor) -> Tensor:
    from hydractl.metrics.per_sample import ensemble_log_probs  # noqa: PLC0415 - the table loads without torch

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
        of_single_model="0 everywhere, so its numbers are those of chance",
    ),
    Score(
        name="msp+mi",
        definition="Sum of `msp` and `mi`; for one member `msp`.",
        compute=msp_and_information,
        low=-1.0,
        of_single_model="`msp`",
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

MAHALANOBIS = ("mahalanobis", "relative-mahalanobis")
KNN, VIM = "knn", "vim"
FITTED: Mapping[str, str] = MappingProxyType(
    {
        MAHALANOBIS[
            0
        ]: "Mean over members of the squared Mahalanobis distance of a member's features to the nearest class mean of "
        "the data `fit`, by the covariance that the classes share (Lee et al. 2018).",
        MAHALANOBIS[
            1
        ]: "`mahalanobis` less the squared Mahalanobis distance to the mean of all of `fit`, by the covariance "
        "of all of it (Ren et al. 2021).",
        KNN: "Mean over members of the distance of a member's features, of length one, to the `knn_k`-th nearest of the data `fit` "
        "(Sun et al. 2022).",
        VIM: "Mean over members of ViM: the length of what a member's features have outside the principal space of the data `fit`, "
        "scaled to a logit, less the logsumexp of the logits (Wang et al. 2022).",
    }
)
"""What scores that look at features mean, by name; see `fitted`."""

EVERY = (*SCORES, *FITTED)
"""The names of all scores."""

OF_ONE = tuple(name for name, score in SCORES.items() if not score.of_single_model)
"""The names of those that are about a single model."""


def definition_of(score: str) -> str:
    """Return what a score means."""
    return FITTED[score] if score in FITTED else SCORES[score].definition


def limits(score: str) -> tuple[float, float]:
    """Return the least and the greatest value that a score may have."""
    if score in SCORES:
        return SCORES[score].low, SCORES[score].high
    return {MAHALANOBIS[0]: (0.0, math.inf), KNN: (0.0, 2.0)}.get(score, (-math.inf, math.inf))


def number_name(metric: str, score: str, scores: Sequence[str]) -> str:
    """Return what a report calls a ranking metric by one of its scores: by the first one the metric's name alone."""
    return metric if score == scores[0] else f"{metric}@{score}"
