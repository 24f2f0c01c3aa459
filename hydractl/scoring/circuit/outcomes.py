"""What candidate models make of the data, and the value of an objective that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from hydractl.metrics.ood_scores import ENERGY, ENERGY_DENSITY, MSP, SCORES
from hydractl.metrics.per_sample import at_labels, places
from hydractl.scoring.circuit.objective import TERMS, Objective

HITS, NLL, CONFIDENCE, SCORE = "hits", "nll", "confidence", "score"
PLAIN = 3
"""Axes of logits if a sample has one label."""
SMALLEST = 1e-15


class Outcomes(NamedTuple):
    """What K candidates made of N samples of ID and N' of OOD data, by name and no more than an objective reads.

    `hits`, `nll` and `confidence` are (K, N), `score` is (K, N) or (K, N'); all but the boolean hits are float64.
    """

    inside: Mapping[str, torch.Tensor]
    outside: Mapping[str, torch.Tensor]

    def candidate(self, number: int) -> Outcomes:
        """Return those of one candidate, K = 1."""
        return self._elementwise(lambda x, _: x[number : number + 1], self)

    @classmethod
    def stacked(cls, several: Sequence[Outcomes]) -> Outcomes:
        """Return those of several sets of candidates as one, for the same samples."""
        inside, outside = (
            {name: torch.cat([outcomes[i][name] for outcomes in several]) for name in several[0][i]}
            for i in range(2)
        )
        return cls(inside, outside)

    def plus(self, addend: Outcomes) -> Outcomes:
        """Return the sums."""
        return self._elementwise(torch.add, addend)

    def times(self, factor: float) -> Outcomes:
        """Return them times a number."""
        return self._elementwise(lambda x, _: factor * x, self)

    def mixed(self, weights: torch.Tensor) -> Outcomes:
        """Return sums of the K candidates' by each row of weights (K', K)."""
        return self._elementwise(lambda x, _: weights.to(x) @ x, self)

    def difference(self, subtrahend: Outcomes) -> Outcomes:
        """Return the differences."""
        return self._elementwise(torch.sub, subtrahend)

    def _elementwise(
        self, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], operand: Outcomes
    ) -> Outcomes:
        inside, outside = (
            {name: change(x, theirs[name]) for name, x in ours.items()}
            for ours, theirs in zip(self, operand, strict=True)
        )
        return Outcomes(inside, outside)


def outcomes_read(objective: Objective, *, labelled: bool) -> tuple[str, ...]:
    """Return the names of the outcomes that an objective reads of ID data (labelled) or OOD data."""
    answers = [name for name in (HITS, CONFIDENCE, NLL) if labelled and name in objective.reads]
    return (*answers, *((SCORE,) if objective.needs_ood else ()))


def outcomes_of(
    logits: torch.Tensor, labels: torch.Tensor | None, objective: Objective, ood_score: str
) -> dict[str, torch.Tensor]:
    """Return what an objective reads of logits (K, B, C) and labels (B,), each (K, B); without labels the OOD score only.

    Of logits (K, B, Q, C) each of the Q labels of a sample is one, (K, B Q), or each of its words, of which those that are
    absent, not-a-number, are left out; the OOD score is the mean over them.

    Probabilities are float64: a trained model's lie so close to 1 that float32 would tie them.
    """
    exact, names = logits.double(), outcomes_read(objective, labelled=labels is not None)
    outcomes: dict[str, torch.Tensor] = {}
    if HITS in names or (SCORE in names and ood_score == MSP):
        probs, classes = exact.softmax(dim=-1).max(dim=-1)
        # a softmax's largest term may exceed 1 by its rounding
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
    """Return what outcomes follow from, each (K, B), on scales on which the effects of heads roughly add up.

    `hits` becomes the label's logit minus the largest other one, probabilities become their log odds.
    """
    exact, names = logits.double(), outcomes_read(objective, labelled=labels is not None)
    traits: dict[str, torch.Tensor] = {}
    if CONFIDENCE in names or (SCORE in names and ood_score == MSP):
        top = exact.argmax(dim=-1, keepdim=True)
        traits = dict.fromkeys((CONFIDENCE, SCORE), _odds(exact, top))
        if exact.ndim > PLAIN:
            traits[SCORE] = traits[SCORE].sigmoid().nanmean(-1).logit(eps=SMALLEST)
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
    """Return values (K, N) of values (K, B) or, of Q labels or words, (K, B, Q), of which those are absent that have no logits."""
    if values.ndim < PLAIN:
        return values
    return values.nanmean(-1) if name == SCORE else values[:, ~logits[0, ..., 0].isnan()]


def guessed(traits: Outcomes, ood_score: str) -> Outcomes:
    """Return the outcomes that follow from traits."""
    undo: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        HITS: lambda x: x > 0,
        NLL: lambda x: torch.nn.functional.softplus(-x),
        CONFIDENCE: torch.sigmoid,
        SCORE: (lambda x: -x.sigmoid()) if ood_score == MSP else (lambda x: x),
    }
    inside, outside = ({n: undo[n](x.double()) for n, x in part.items()} for part in traits)
    return Outcomes(inside, outside)


def _of_logits(ood_score: str, logits: torch.Tensor) -> torch.Tensor:
    """Return a score of logits, of `energy+density` the energy."""
    return SCORES[ENERGY if ood_score == ENERGY_DENSITY else ood_score].of(logits.unsqueeze(0))


def _odds(logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return log p / (1 - p) of the classes `at` (..., 1), shape (...)."""
    other_classes = logits.scatter(-1, at, float("-inf")).logsumexp(dim=-1)
    return logits.gather(-1, at).squeeze(-1) - other_classes


def values_of(objective: Objective, outcomes: Outcomes) -> torch.Tensor:
    """Return an objective's values for K candidates, shape (K,), float64, on the CPU; higher is better."""
    sample = dict(outcomes.inside)
    if objective.needs_ood:
        sample |= places(outcomes.inside[SCORE], outcomes.outside[SCORE])
    parts = [t.factor * torch.as_tensor(TERMS[t.name].of(sample)).cpu() for t in objective.terms]
    return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


def first_best(values: Sequence[float]) -> int:
    """Return the index of the first maximum: Algorithm 1 replaces its best only by a strictly better one."""
    return max(range(len(values)), key=lambda i: (values[i], -i))
