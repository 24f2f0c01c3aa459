"""Values per sample from which metrics are computed, so that a resample is a selection of samples.

Axes: M members, N samples of ID and N' of OOD data, C classes; dots are optional axes of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.metrics.metric_spec import check_labels, check_probs
from hydractl.runtime import at_least_single

BINARY = 2
SAMPLES_AT_ONCE = 4096
NUMBERS_AT_ONCE = 2**20
"""Number of float64 values in a chunk, over all members."""


class StoredPredictions(Protocol):
    """Predictions of members on samples, in memory or on disk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """M, N and C; M, N, Q and 2 of Q labels."""
        ...

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Scores (N,), float64, that cannot be computed from the predictions, by name; empty if there are none.

        If confidence is not a class probability, `msp` is its negative.
        """
        ...

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, with at most so many samples at a time."""
        ...

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member separately, M = 1."""
        ...


class Responses(NamedTuple):
    """Predictions of members on samples, in memory.

    Attributes:
        log_probs: Natural logarithms of probabilities, (M, N, C); of models that answer Q labels (M, N, Q, 2), or Q words
            (M, N, Q, C), with not-a-number for words that a text has not.
        logsumexp: Logsumexp of the logits, (M, N) or (M, N, Q), so that logits are `log_probs` plus it; None if not stored.
        scores: As of `StoredPredictions`; parts and single members have none.
    """

    log_probs: Tensor
    logsumexp: Tensor | None = None
    scores: Mapping[str, Tensor] = MappingProxyType({})

    def logits(self) -> Tensor:
        """Return the logits (M, N, C) or (M, N, Q, 2) in float64.

        Raises:
            ValueError: If `logsumexp` is None.
        """
        if self.logsumexp is None:
            raise ValueError("the predictions are log-probabilities, from which logits cannot be recovered")
        return self.log_probs.double() + self.logsumexp.double().unsqueeze(-1)

    @classmethod
    def of(cls, tensors: Iterable[Tensor], scores: Mapping[str, Tensor] = MappingProxyType({})) -> Responses:
        """Return predictions with log-probabilities and, if there is a second tensor, the logsumexp of the logits."""
        log_probs, *others = tensors
        return cls(log_probs, others[0] if others else None, scores)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the stored tensors, without the scores."""
        return (self.log_probs,) if self.logsumexp is None else (self.log_probs, self.logsumexp)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of `log_probs`."""
        return tuple(self.log_probs.shape)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Responses:
        """Return predictions of other samples, which `change` makes of each tensor (M, N, ...)."""
        return Responses.of(map(change, self.tensors()))

    def flattened(self) -> Responses:
        """Return predictions on all labels of all samples, (M, N Q, 2), of predictions on samples with Q labels; on all words there are."""
        log_probs = self.log_probs.flatten(1, -2)
        absent = log_probs[0, :, 0].isnan() if log_probs.ndim < self.log_probs.ndim else None
        return Responses(log_probs if absent is None or not absent.any() else log_probs[:, ~absent])

    def members(self) -> Iterator[Responses]:
        """Yield the predictions of each member separately, M = 1."""
        return (Responses(*part) for part in zip(*(x.split(1) for x in self.tensors()), strict=True))

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, with at most so many samples at a time."""
        return (Responses(*part) for part in zip(*(x.split(samples, 1) for x in self.tensors()), strict=True))


@dataclass(frozen=True, slots=True)
class Joined:
    """Predictions of the members of several models on the same samples, as one ensemble."""

    parts: tuple[StoredPredictions, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of `StoredPredictions`."""
        return sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Scores (N,) that all parts have, by name: means over members."""
        shares = [part.shape[0] / self.shape[0] for part in self.parts]
        return {
            name: torch.stack(
                [share * part.scores[name] for share, part in zip(shares, self.parts, strict=True)]
            ).sum(0)
            for name in self.parts[0].scores
            if all(name in part.scores for part in self.parts)
        }

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, with at most so many samples at a time."""
        for member_parts in zip(*(part.split(samples) for part in self.parts), strict=True):
            yield Responses.of(map(torch.cat, zip(*(part.tensors() for part in member_parts), strict=True)))

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member separately, M = 1."""
        for part in self.parts:
            yield from part.members()


def in_memory(predictions: StoredPredictions) -> Responses:
    """Return the predictions in memory."""
    if isinstance(predictions, Responses):
        return predictions
    parts = [part.tensors() for part in predictions.split(SAMPLES_AT_ONCE)]
    tensors = (torch.cat(part_tensors, 1) for part_tensors in zip(*parts, strict=True))
    return Responses.of(tensors, predictions.scores)


def at_once(predictions: StoredPredictions) -> int:
    """Return the number of samples per chunk, so that memory does not depend on the number of members or classes."""
    members, _, *classes = predictions.shape
    return max(1, min(SAMPLES_AT_ONCE, NUMBERS_AT_ONCE // math.prod((members, *classes))))


class Opinions(NamedTuple):
    """Natural logarithms of the probabilities of members and ensemble.

    Attributes:
        members: Each member's `log p_m`, (M, ..., C).
        ensemble: `log mean_m p_m`, (..., C).
    """

    members: Tensor
    ensemble: Tensor

    def logits(self, *, multi_label: bool) -> Tensor:
        """Return the ensemble's logits: its log-probabilities (..., C), or of Q labels (..., Q, 2) their log odds (..., Q)."""
        return self.ensemble[..., 1] - self.ensemble[..., 0] if multi_label else self.ensemble


def of_samples(values: Tensor) -> Tensor:
    """Return values (B,) of values (B,), or of the values (B, Q) of Q labels or words: the mean of those that are there."""
    return values if values.ndim == 1 else values.nanmean(-1)


def of_inputs(values: Tensor, *, multi_label: bool) -> Tensor:
    """Return values of inputs (B,), of Q labels (B, Q) their mean; of tokens (B, T) they stay as they are."""
    return values.mean(-1) if multi_label else values


def opinions(logits: Tensor) -> Opinions:
    """Return the log-probabilities of logits (M, ..., C), in at least float32, as coarser rounding would hide disagreement."""
    log_probs = logits.log_softmax(-1, dtype=at_least_single(logits.dtype))
    return Opinions(log_probs, ensemble_log_probs(log_probs))


def ensemble_log_probs(member_log_probs: Tensor) -> Tensor:
    """Return `log mean_m p_m` (...), the ensemble's prediction, from log-probabilities of members (M, ...)."""
    if (
        member_log_probs.is_cuda and not torch.is_grad_enabled()
    ):  # one call there, where the other takes eight
        total = member_log_probs.logcumsumexp(0)[-1]
    else:
        total = member_log_probs.logsumexp(0)
    return total - math.log(len(member_log_probs))


def mean_probabilities(predictions: Responses) -> Tensor:
    """Return the mean of the members' probabilities (B, ...), computed in float64 and rounded to float32, as `predict` has them."""
    return ensemble_log_probs(predictions.log_probs.double()).exp().float()


def most_probable(probabilities: Tensor) -> Tensor:
    """Return the most probable class (..., N), int64, of probabilities (..., N, C), the lowest among equals; -1 for not-a-numbers."""
    return probabilities.nan_to_num(nan=-1.0).argmax(-1).masked_fill(probabilities[..., 0].isnan(), -1)


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the entries (..., N) of values (..., N, C) that belong to labels (N,), int64."""
    return values.gather(-1, labels.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def question_losses(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each item in nats: the mean over the questions that it answers, see `mean_over_questions`.

    Args:
        logits: Shape (..., N, C), or (..., N, Q, C) for items with Q questions; dots are optional axes of members or candidates.
        labels: Shape (N,), or (N, Q), int64, in 0..C-1, or -100 for what is not asked; or probabilities, with C on a further axis.
        label_smoothing: As in PyTorch, in [0, 1].

    Returns:
        Shape (..., N), in the dtype of the logits.
    """
    soft = labels.is_floating_point()
    targets = labels.expand(logits.shape if soft else logits.shape[:-1])
    losses = F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(0, -2) if soft else targets.flatten(),
        reduction="none",
        label_smoothing=label_smoothing,
    ).view(logits.shape[:-1])
    return losses if labels.ndim - soft == 1 else mean_over_questions(losses, None if soft else labels >= 0)


def mean_over_questions(values: Tensor, counted: Tensor | None) -> Tensor:
    """Return values (..., N) of the values (..., N, Q) of items' questions, so that their mean is that over all questions asked.

    Args:
        values: Of all questions.
        counted: Which of them are asked, (N, Q); None for all.
    """
    if counted is None:
        return values.mean(-1)
    questions = counted.sum().clamp(min=1).to(values.dtype) / len(counted)  # of an item on average
    return (values * counted).sum(-1) / questions


def answers(probs: Tensor, labels: Tensor, *, log_probs: Tensor | None = None) -> dict[str, Tensor]:
    """Return the values per sample that metrics of labelled data need, each (N,), float64 except for hits and classes.

    `predicted` is the most probable class, int64, the lowest among equals; `hits` is whether it is the label, boolean,
    `confidence` its probability, `nll` the negative log-probability of the label in nats, `error` the squared error summed over
    classes, and of two classes `log_odds` the logarithm of the second one's probability over that of the first.

    Args:
        probs: Shape (N, C), rows summing to 1.
        labels: Shape (N,), integer, in 0..C-1.
        log_probs: Natural logarithms of `probs`, if known, because a probability that underflows would have an infinite
            logarithm.

    Raises:
        ValueError: If a shape or a value is invalid.
    """
    check_probs(probs)
    check_labels(labels, samples=probs.shape[0], classes=probs.shape[1])
    confidence, predicted = probs.max(1)
    log_probs = (probs.log() if log_probs is None else log_probs).double()
    error = probs.double() - torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return {
        "predicted": predicted,
        "hits": predicted == labels,
        # a row of low precision may sum to a little more than 1, and bins end at 1
        "confidence": confidence.double().clamp(max=1.0),
        "nll": -at_labels(log_probs, labels.long()),
        "error": error.square().sum(1),
        **({"log_odds": log_probs[:, 1] - log_probs[:, 0]} if probs.shape[1] == BINARY else {}),
    }


def places(id_scores: Tensor, ood_scores: Tensor) -> dict[str, Tensor]:
    """Return ranks by score of ID samples, `inside` (..., N), and OOD samples, `outside` (..., N'), int64; 0 is the highest.

    Samples with equal score share a rank, and ranks have no gaps, so they depend only on the order.

    Args:
        id_scores: Shape (..., N), finite; higher is more OOD.
        ood_scores: Shape (..., N'), finite.

    Raises:
        ValueError: If either is empty or not finite, or their shapes differ except for the last axis.
    """
    for name, scores in (("ID", id_scores), ("OOD", ood_scores)):
        if not scores.numel():
            raise ValueError(f"{name} scores must have non-empty axes, got shape {tuple(scores.shape)}")
        if not bool(scores.isfinite().all()):
            raise ValueError(f"{name} scores must be finite")
    if id_scores.shape[:-1] != ood_scores.shape[:-1]:
        raise ValueError(
            f"ID scores have shape {tuple(id_scores.shape)}, but OOD scores have shape {tuple(ood_scores.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(id_scores.dtype, ood_scores.dtype), torch.float32)
    ordered, order = torch.cat([id_scores.to(dtype), ood_scores.to(dtype)], -1).sort(-1, descending=True)
    place_numbers = torch.zeros_like(order)
    place_numbers.scatter_(-1, order[..., 1:], (ordered[..., 1:] != ordered[..., :-1]).cumsum(-1))
    inside, outside = place_numbers.split([id_scores.shape[-1], ood_scores.shape[-1]], -1)
    return {"inside": inside, "outside": outside}
