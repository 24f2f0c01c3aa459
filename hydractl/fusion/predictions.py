"""Predictions for users: probabilities and uncertainties of samples.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.metrics.compute import scored
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import SAMPLES_AT_ONCE, Responses, Scored, ensemble_log_probs, in_memory


class Bound(NamedTuple):
    """A threshold on an OOD score: samples below it are accepted."""

    score: str
    below: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """Predictions of a model on N samples, on the CPU and without gradients; M = 1 for a base or a member.

    Attributes:
        labels: Name of the most probable class of each sample; its number if the model has no class names.
        classes: Index of that class, (N,), int64; the lowest among equals.
        probabilities: Mean of the members' probabilities, (N, C), float32.
        member_probabilities: Probabilities of each member, (M, N, C), float32.
        votes: Most probable class of each member, (M, N), int64.
        scores: OOD scores by their names in `eval`, (N,), float32: all scores of logits, and the feature-based ones that
            the model stores. Higher is more OOD.
        accepted: Whether each sample is accepted by the stored threshold, (N,), boolean. None without a stored threshold,
            or if no threshold satisfies the required risk.
    """

    labels: tuple[str, ...]
    classes: Tensor
    probabilities: Tensor
    member_probabilities: Tensor
    votes: Tensor
    scores: Mapping[str, Tensor]
    accepted: Tensor | None = None

    @classmethod
    def of(
        cls, member_answers: Responses | Scored, names: Sequence[str], bound: Bound | None = None
    ) -> Predictions:
        """Return the predictions from the outputs of members.

        Args:
            member_answers: Outputs with the logsumexp of logits, and optionally feature-based scores.
            names: Names of the C classes.
            bound: Threshold that accepts samples.
        """
        responses, fitted = (
            (in_memory(member_answers.predictions), member_answers.scores)
            if isinstance(member_answers, Scored)
            else (member_answers, {})
        )
        parts = responses.split(SAMPLES_AT_ONCE)
        mean = torch.cat([ensemble_log_probs(p.log_probs.double()).exp().float() for p in parts])
        members = responses.log_probs.exp()
        classes = mean.argmax(1)
        scores = {name: scored(responses, name).float() for name in SCORES}
        scores |= {name: member_scores.float() for name, member_scores in fitted.items()}
        return cls(
            labels=tuple(names[i] for i in classes.tolist()),
            classes=classes,
            probabilities=mean,
            member_probabilities=members,
            votes=members.argmax(2),
            scores=scores,
            accepted=None if bound is None else scores[bound.score] < bound.below,
        )

    def __len__(self) -> int:
        """Return N."""
        return len(self.labels)

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (N,)."""
        return self.probabilities.amax(1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, in nats, (N,)."""
        return self.scores["entropy"]

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information, the disagreement of members, in nats, (N,): see `metrics.ood_scores.mutual_information`."""
        return self.scores["mi"]
