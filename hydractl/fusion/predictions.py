"""What a user is told of samples: probabilities, and how sure one may be.

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
    """A threshold: samples are accepted whose OOD score is below it."""

    score: str
    below: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What a model says of N samples, on the CPU and without gradients; a model that is no hydra has one member.

    Attributes:
        labels: The name of each sample's most probable class; its number where the model's classes have no names.
        classes: Its number (N,), int64; of equally probable ones the lowest.
        probabilities: The mean of the members' probabilities, (N, C), float32.
        member_probabilities: Each member's own, (M, N, C), float32.
        votes: The class (M, N), int64, that each member takes for the most probable.
        scores: OOD scores by the names that `eval` has, (N,), float32: all of logits, and those of features that the model holds;
            the higher, the stranger the sample.
        accepted: Whether the model answers for each sample, (N,), boolean: by the threshold that its checkpoint stores, None
            where it stores none, or that none keeps the risk that was asked for.
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
        """Return what follows from what members say.

        Args:
            member_answers: With the logits' logsumexp, and perhaps scores of features.
            names: Of the C classes.
            bound: What accepts samples.
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
        """The probability of the most probable class, (N,)."""
        return self.probabilities.amax(1)

    @property
    def entropy(self) -> Tensor:
        """The entropy of the mean probabilities in nats, (N,)."""
        return self.scores["entropy"]

    @property
    def mutual_information(self) -> Tensor:
        """How much members disagree, in nats, (N,): see `metrics.scores.mutual_information`."""
        return self.scores["mi"]
