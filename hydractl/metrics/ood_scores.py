"""OOD scores of a model or an ensemble; a higher score is more OOD.

Functions map the members' logits or log-probabilities (M, ..., C) to shape (...); M = 1 is a single model.
Feature-based scores must be fitted on training data: see `feature_scores`. A score with options has the name
`NAME:OPTION=VALUE:...`. Importing this module does not load torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from hydractl.manifest.header import Header

MSP, ENERGY = "msp", "energy"
GEN_POWER, GEN_CLASSES = 0.1, 100
"""Exponent and number of classes of the score `gen`: the values of Liu et al. (2023). Twice the exponent
gives less weight to classes with tiny probabilities; twice the number includes more of these classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Definition of an OOD score.

    Attributes:
        name: Name in options and reports.
        definition: Definition for reports in one sentence, with the source.
        compute: Function from the members' outputs (M, ..., C) to scores (...).
        raw: Whether the function takes logits; otherwise it takes log-probabilities.
        of_single_model: Text for messages: the score of a single model, if the score measures differences
            between members. Empty for other scores.
        low: Smallest possible value.
        high: Largest possible value.
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
    """Return the negated maximum of the mean probabilities, -max_c mean_m p_mc, in [-1, 0].

    Hendrycks and Gimpel (2017), section 2.
    """
    return -_mean(log_probs).exp().amax(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of the mean probabilities, H(mean_m p_m), in nats, in [0, ln C].

    torch-uncertainty uses this name for the mean of the members' entropies.
    """
    return _entropy(_mean(log_probs))


def mutual_information(log_probs: Tensor) -> Tensor:
    """Return the mutual information H(mean_m p_m) - mean_m H(p_m) in nats, in [0, ln M].

    Depeweg et al. (2018), eq. 4. Values below 0 from rounding are set to 0. A single model has 0 for all
    samples, so ranking metrics have their chance value.
    """
    return (_entropy(_mean(log_probs)) - _entropy(log_probs).mean(0)).clamp(min=0)


def energy(logits: Tensor) -> Tensor:
    """Return the mean of the members' energies, -log Σ_c exp z_mc, at temperature 1 (Liu et al. 2020, eq. 3).

    torch-uncertainty uses the energy of the mean logits. Both are equal for a single model.
    """
    return -logits.logsumexp(-1).mean(0)


def max_logit(logits: Tensor) -> Tensor:
    """Return the negated maximum of the mean logits, -max_c mean_m z_mc, as in torch-uncertainty.

    Hendrycks et al. (2022), section 3.2.
    """
    return -logits.mean(0).amax(-1)


def msp_and_information(log_probs: Tensor) -> Tensor:
    """Return `msp` plus `mutual_information`, in [-1, ln M].

    The sum of the ensemble's uncertainty and its members' disagreement has no weights or parameters. For a
    single model it equals `msp`.
    """
    return msp(log_probs) + mutual_information(log_probs)


def generalized_entropy(log_probs: Tensor) -> Tensor:
    """Return GEN, sum_c p_c^g (1 - p_c)^g over the K largest mean probabilities (Liu et al. 2023, eq. 3).

    g = 0.1 and K = min(C, 100). OpenOOD uses the negated value.
    """
    largest = _mean(log_probs).topk(min(log_probs.shape[-1], GEN_CLASSES), dim=-1).values
    # logarithms, so that a p of 1 after rounding gives 0 instead of NaN: ln(1 - p) is -inf
    return (GEN_POWER * (largest + (-largest.expm1()).log())).exp().sum(-1)


def _mean(log_probs: Tensor) -> Tensor:
    from hydractl.metrics.per_sample import ensemble_log_probs  # noqa: PLC0415 - the table loads without torch

    return ensemble_log_probs(log_probs)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs).sum(-1)


_TABLE = (
    Score(
        name=MSP,
        definition="Negated maximum over classes of the members' mean probabilities (Hendrycks and Gimpel 2017).",
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
        definition="Mutual information: entropy of the members' mean probabilities minus the mean of the members' entropies, in nats; 0 "
        "for a single member (Depeweg et al. 2018).",
        compute=mutual_information,
        low=0.0,
        of_single_model="always 0, so its OOD metrics are those of chance",
    ),
    Score(
        name="msp+mi",
        definition="Sum of `msp` and `mi`; equal to `msp` for a single member.",
        compute=msp_and_information,
        low=-1.0,
        of_single_model="`msp`",
    ),
    Score(
        name=ENERGY,
        definition="Mean over members of the energy, which is the negated logsumexp of the member's logits (Liu et al. 2020).",
        compute=energy,
        raw=True,
    ),
    Score(
        name="max-logit",
        definition="Negated maximum over classes of the members' mean logits (Hendrycks et al. 2022).",
        compute=max_logit,
        raw=True,
    ),
    Score(
        name="gen",
        definition="Generalized entropy of the 100 largest of the members' mean probabilities, with gamma 0.1 (Liu et al. 2023).",
        compute=generalized_entropy,
        low=0.0,
    ),
)

SCORES: Mapping[str, Score] = MappingProxyType({score.name: score for score in _TABLE})
"""OOD scores of logits by name. For a single model the scores equal OpenOOD's scores up to the sign."""

MAHALANOBIS, RELATIVE, KNN, VIM = "mahalanobis", "relative-mahalanobis", "knn", "vim"
ENERGY_DENSITY = "energy+density"
"""Default score of models that store this score."""

FITTED: Mapping[str, str] = MappingProxyType(
    {
        ENERGY_DENSITY: "Mean over members of the sum of the member's `energy` and `relative-mahalanobis`, each minus its mean and divided by "
        "its standard deviation on held-out ID data.",
        RELATIVE: "Mean over members of the squared Mahalanobis distance of the member's features, scaled to length 1, to the nearest "
        "class mean of the data set `fit`, minus the squared distance to the mean of all samples. Both covariances "
        "are shrunk in the same way (Ren et al. 2021; Müller and Hein 2025).",
        MAHALANOBIS: "Mean over members of the squared Mahalanobis distance of the member's features, scaled to length 1, to the nearest "
        "class mean of the data set `fit`, with one shrunk covariance for all classes (Lee et al. 2018; Müller and Hein 2025).",
        KNN: "Mean over members of the distance from the member's features, scaled to length 1, to the k-th nearest features of the "
        "data set `fit`, k = 1 (Sun et al. 2022).",
        VIM: "Mean over members of ViM: the norm of the member's features outside the principal space of the data set `fit`, scaled "
        "to a logit, minus the logsumexp of the logits (Wang et al. 2022).",
    }
)
"""Definitions of feature-based scores by name."""

EVERY = (*SCORES, *FITTED)
"""Names of all scores, without options."""

OF_ONE = tuple(name for name, score in SCORES.items() if not score.of_single_model)
"""Names of the scores that do not need several members."""

VERSION = 2
"""Version of the definitions of feature-based scores. Files store the version with the fitted tensors."""
_CHANGED = MappingProxyType({MAHALANOBIS: 2, RELATIVE: 2, KNN: 2})
"""Version of the last change to a score's definition; 1 for all other scores."""


def _shrinkage(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


class Option(NamedTuple):
    """An option of a score.

    Attributes:
        values: Description of valid values, for messages.
        read: Parses a value. Raises ValueError or KeyError for an invalid text.
        default: Default value.
    """

    values: str
    read: Callable[[str], float | bool]
    default: float | bool | None = None


_OF_DISTANCES: Mapping[str, Option] = MappingProxyType(
    {
        "alpha": Option("a number in [0, 1]", _shrinkage),
        "normalize": Option("`true` or `false`", {"true": True, "false": False}.__getitem__, default=True),
    }
)
OPTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {
        MAHALANOBIS: _OF_DISTANCES,
        RELATIVE: _OF_DISTANCES,
        KNN: {"k": Option("a positive integer", _count, default=1)},
    }
)
"""Options of scores. The default of the shrinkage `alpha` is estimated from the data."""


def parse_score(text: str) -> str:
    """Return the canonical name of a score: sorted options, without options that have their default.

    Raises:
        UsageError: If the score or one of its options is unknown.
    """
    name, *chosen = text.split(":")
    if name not in EVERY:
        raise UsageError(
            f"`--ood-score {text}`: unknown OOD score `{name}`",
            hint=did_you_mean(name, EVERY) or f"choose from {', '.join(EVERY)}",
        )
    values: dict[str, float | bool] = {}
    for pair in chosen:
        option, _, value = pair.partition("=")
        known = OPTIONS.get(name, {})
        if option not in known:
            raise UsageError(
                f"`--ood-score {text}`: the OOD score `{name}` has no option `{option}`",
                hint=f"it has {', '.join(f'`{o}`' for o in known)}" if known else f"write `{name}`",
            )
        if option in values:
            raise UsageError(f"`--ood-score {text}`: repeats `{option}`")
        try:
            values[option] = known[option].read(value)
        except (ValueError, KeyError):
            raise UsageError(
                f"`--ood-score {text}`: `{option}` must be {known[option].values}, not `{value}`"
            ) from None
    return ":".join(
        [
            name,
            *(
                f"{o}={str(v).lower() if isinstance(v, bool) else f'{v:g}'}"
                for o, v in sorted(values.items())
                if v != OPTIONS[name][o].default
            ),
        ]
    )


def kind_of(score: str) -> str:
    """Return the name of a score without its options."""
    return score.partition(":")[0]


def options_of(score: str) -> dict[str, float | bool | None]:
    """Return the value of every option of a canonical score name; `None` means estimated from the data."""
    kind, *chosen = score.split(":")
    options = OPTIONS.get(kind, {})
    values = {name: option.default for name, option in options.items()}
    return values | {
        name: options[name].read(value) for name, _, value in (pair.partition("=") for pair in chosen)
    }


def check_scores(scores: Iterable[str]) -> None:
    """Raise unless names are canonical, as returned by `parse_score`.

    Raises:
        UsageError: With the name that is not canonical.
    """
    for score in scores:
        if (name := parse_score(score)) != score:
            raise UsageError(f"`--ood-score {score}`: write it as `{name}`", hint=f"write `{name}`")


def is_known(score: str) -> bool:
    """Return whether a text is the canonical name of a score."""
    try:
        return parse_score(score) == score
    except UsageError:
        return False


def is_fitted(score: str) -> bool:
    """Return whether a score is feature-based and must be fitted."""
    return kind_of(score) in FITTED


def has_same_definition(score: str, version: int) -> bool:
    """Return whether a score has the same definition as in files with this `VERSION`."""
    return version >= _CHANGED.get(kind_of(score), 1)


def check_stored(score: str, version: int, bound: float | None = None, *, is_fitted: bool = False) -> None:
    """Validate an OOD score from a file.

    Args:
        score: Name of the score.
        version: `VERSION` of the release that wrote the file.
        bound: Threshold on the score, or `None`.
        is_fitted: Whether the score must be feature-based.

    Raises:
        ValueError: If this release does not know the score or the version, or the score cannot reach the
            bound.
    """
    if version > VERSION or not is_known(score) or (is_fitted and kind_of(score) not in FITTED):
        raise ValueError(
            f"`{score}` of version {version} is not {'a feature-based' if is_fitted else 'an'} OOD score that this release knows; "
            f"its newest version is {VERSION}"
        )
    low, high = limits(score)
    if bound is not None and not low - 1e-5 <= bound <= high + 1e-5:  # tolerance for the rounding of scores
        raise ValueError(f"below: {bound:g} is outside {low:g} to {high:g}, the range of `{score}`")


def definition_of(score: str) -> str:
    """Return the definition of a score, with its options."""
    kind = kind_of(score)
    options = score.removeprefix(kind).lstrip(":").replace(":", ", ")
    definition = FITTED[kind] if kind in FITTED else SCORES[score].definition
    return f"{definition} Here {options}." if options else definition


def limits(score: str) -> tuple[float, float]:
    """Return the smallest and the largest possible value of a score."""
    if score in SCORES:
        return SCORES[score].low, SCORES[score].high
    return {MAHALANOBIS: (0.0, math.inf), KNN: (0.0, 2.0)}.get(kind_of(score), (-math.inf, math.inf))


def number_name(metric: str, score: str, scores: Sequence[str]) -> str:
    """Return the name of a ranking metric for an OOD score: `metric@score`, or `metric` for the first score."""
    return metric if score == scores[0] else f"{metric}@{score}"


def default_score(header: Header) -> str:
    """Return the default OOD score of a model: `energy+density` if stored in the checkpoint, else `msp`."""
    return ENERGY_DENSITY if header.fitted and ENERGY_DENSITY in header.fitted.scores else MSP
