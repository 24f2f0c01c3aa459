"""Predictions of members, and the values per sample from which metrics are computed.

Metrics of values per sample can be computed on a resample by selecting samples.

Axes: M members, N ID samples, N' OOD samples, C classes; dots are optional axes of candidates.
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
"""Maximum number of samples in a chunk. Chosen by hand; doubling the limit doubles the memory of chunks with
few classes."""
NUMBERS_AT_ONCE = 2**20
"""Maximum number of float64 values in a chunk over all members, 8 MB. Chosen by hand; doubling the limit
doubles the memory of chunks with many classes."""


class StoredPredictions(Protocol):
    """Predictions of members on samples, in memory or on disk."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (M, N, C); (M, N, Q, 2) for Q labels, (M, N, Q, C) for Q words."""
        ...

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Stored scores (N,), float64, by name, for scores that cannot be computed from the predictions.

        Contains `msp`, the negated confidence, if the confidence is not a class probability. May be empty.
        """
        ...

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, in chunks of at most `samples` samples."""
        ...

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member, with M = 1."""
        ...


class Responses(NamedTuple):
    """Predictions of members on samples, in memory.

    Attributes:
        log_probs: Log-probabilities, shape (M, N, C); (M, N, Q, 2) for Q labels; (M, N, Q, C) for Q words,
            with NaN for padding words.
        logsumexp: Logsumexp of the logits, shape (M, N) or (M, N, Q), so logits are `log_probs` plus
            `logsumexp`. `None` if not stored.
        scores: As in `StoredPredictions`. Chunks and single members have no scores.
    """

    log_probs: Tensor
    logsumexp: Tensor | None = None
    scores: Mapping[str, Tensor] = MappingProxyType({})

    def logits(self) -> Tensor:
        """Return the logits in float64, in the shape of `log_probs`.

        Raises:
            ValueError: If `logsumexp` is `None`.
        """
        if self.logsumexp is None:
            raise ValueError("the predictions are log-probabilities, from which logits cannot be recovered")
        return self.log_probs.double() + self.logsumexp.double().unsqueeze(-1)

    @classmethod
    def of(cls, tensors: Iterable[Tensor], scores: Mapping[str, Tensor] = MappingProxyType({})) -> Responses:
        """Return predictions from log-probabilities and, optionally, the logsumexp of the logits."""
        log_probs, *others = tensors
        return cls(log_probs, others[0] if others else None, scores)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the log-probabilities and, if stored, the logsumexp."""
        return (self.log_probs,) if self.logsumexp is None else (self.log_probs, self.logsumexp)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `log_probs`."""
        return tuple(self.log_probs.shape)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Responses:
        """Return predictions with `change` applied to each tensor (M, N, ...), without the scores."""
        return Responses.of(map(change, self.tensors()))

    def flattened(self) -> Responses:
        """Return log-probabilities (M, N Q, C) with each label or word as a sample.

        Padding words are removed.
        """
        log_probs = self.log_probs.flatten(1, -2)
        absent = log_probs[0, :, 0].isnan() if log_probs.ndim < self.log_probs.ndim else None
        return Responses(log_probs if absent is None or not absent.any() else log_probs[:, ~absent])

    def members(self) -> Iterator[Responses]:
        """Yield the predictions of each member, with M = 1."""
        return (Responses(*part) for part in zip(*(x.split(1) for x in self.tensors()), strict=True))

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, in chunks of at most `samples` samples."""
        return (Responses(*part) for part in zip(*(x.split(samples, 1) for x in self.tensors()), strict=True))


@dataclass(frozen=True, slots=True)
class Joined:
    """Predictions of several models on the same samples, as one ensemble of all members."""

    parts: tuple[StoredPredictions, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """As in `StoredPredictions`."""
        return sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]

    @property
    def scores(self) -> Mapping[str, Tensor]:
        """Scores (N,) present in all models, by name: means over members."""
        shares = [part.shape[0] / self.shape[0] for part in self.parts]
        return {
            name: torch.stack(
                [share * part.scores[name] for share, part in zip(shares, self.parts, strict=True)]
            ).sum(0)
            for name in self.parts[0].scores
            if all(name in part.scores for part in self.parts)
        }

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield the predictions in order, in chunks of at most `samples` samples."""
        for member_parts in zip(*(part.split(samples) for part in self.parts), strict=True):
            yield Responses.of(map(torch.cat, zip(*(part.tensors() for part in member_parts), strict=True)))

    def members(self) -> Iterator[StoredPredictions]:
        """Yield the predictions of each member, with M = 1."""
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
    """Return the number of samples per chunk: fewer with many members or classes, so memory is bounded."""
    members, _, *classes = predictions.shape
    return max(1, min(SAMPLES_AT_ONCE, NUMBERS_AT_ONCE // math.prod((members, *classes))))


class MemberLogProbs(NamedTuple):
    """Log-probabilities of members and ensemble.

    Attributes:
        members: `log p_m` of each member, shape (M, ..., C).
        ensemble: `log mean_m p_m`, shape (..., C).
    """

    members: Tensor
    ensemble: Tensor

    def logits(self, *, multi_label: bool) -> Tensor:
        """Return the ensemble's logits.

        These are the log-probabilities (..., C), or for a multi-label model the log odds (..., Q) from (...,
        Q, 2).
        """
        return self.ensemble[..., 1] - self.ensemble[..., 0] if multi_label else self.ensemble


def of_samples(values: Tensor) -> Tensor:
    """Return the mean over labels or words of values (B, Q), without NaN; values (B,) are unchanged."""
    return values if values.ndim == 1 else values.nanmean(-1)


def of_inputs(values: Tensor, *, multi_label: bool) -> Tensor:
    """Return the mean over labels of values (B, Q) of a multi-label model; other values are unchanged."""
    return values.mean(-1) if multi_label else values


def opinions(logits: Tensor) -> MemberLogProbs:
    """Return the log-probabilities of member logits (M, ..., C).

    Computed in at least float32, because the rounding of lower precision would hide disagreement between
    members.
    """
    log_probs = logits.log_softmax(-1, dtype=at_least_single(logits.dtype))
    return MemberLogProbs(log_probs, ensemble_log_probs(log_probs))


def ensemble_log_probs(member_log_probs: Tensor) -> Tensor:
    """Return `log mean_m p_m` (...), the ensemble's prediction, from the members' log-probabilities (M, ...)."""
    if (
        member_log_probs.is_cuda and not torch.is_grad_enabled()
    ):  # one kernel launch on a GPU, where `logsumexp` needs eight; small batches wait for launches
        total = member_log_probs.logcumsumexp(0)[-1]
    else:
        total = member_log_probs.logsumexp(0)
    return total - math.log(len(member_log_probs))


def mean_probabilities(predictions: Responses) -> Tensor:
    """Return the mean of the members' probabilities, shape (B, ...), float32.

    Computed in float64 and rounded, so the values equal the output of `predict`.
    """
    return ensemble_log_probs(predictions.log_probs.double()).exp().float()


def most_probable(probabilities: Tensor) -> Tensor:
    """Return the most probable class, shape (..., N), int64, for probabilities (..., N, C); -1 for NaN.

    Of equal probabilities the lowest class index is returned.
    """
    return probabilities.nan_to_num(nan=-1.0).argmax(-1).masked_fill(probabilities[..., 0].isnan(), -1)


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the entries (..., N) of values (..., N, C) at labels (N,), int64."""
    return values.gather(-1, labels.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def item_losses(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each item in nats.

    The losses of several labels or words per item are averaged, see `mean_over_questions`.

    Args:
        logits: Shape (..., N, C), or (..., N, Q, C) for items with Q labels or words; dots are optional axes
            of members or candidates.
        labels: Shape (N,) or (N, Q), int64, in 0..C-1, or -100 to ignore an entry. Or probabilities, with C
            as an additional last axis.
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
    """Return values per item, shape (..., N), from values of labels or words, shape (..., N, Q).

    The result is scaled so that its mean over items is the mean over all counted entries.

    Args:
        values: Values of all labels or words.
        counted: Which entries count, shape (N, Q). `None` for all.
    """
    if counted is None:
        return values.mean(-1)
    # counted entries of an average item
    questions = counted.sum().clamp(min=1).to(values.dtype) / len(counted)
    return (values * counted).sum(-1) / questions


def answers(probs: Tensor, labels: Tensor, *, log_probs: Tensor | None = None) -> dict[str, Tensor]:
    """Return the values per sample for metrics of labelled data, each of shape (N,).

    Args:
        probs: Shape (N, C), rows summing to 1.
        labels: Shape (N,), integer, in 0..C-1.
        log_probs: Logarithms of `probs`, if known. The logarithm of a probability that underflows would be
            infinite.

    Returns:
        `predicted`: most probable class, int64, the lowest index of equal ones. `hits`: whether the
        prediction is the label, boolean. In float64: `confidence`: probability of the prediction. `nll`:
        negative log-probability of the label in nats. `error`: squared error summed over classes. `log_odds`,
        for two classes only: log-probability of the second class minus log-probability of the first.

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
        # a row of low precision may sum to more than 1, but the bins of calibration errors end at 1
        "confidence": confidence.double().clamp(max=1.0),
        "nll": -at_labels(log_probs, labels.long()),
        "error": error.square().sum(1),
        **({"log_odds": log_probs[:, 1] - log_probs[:, 0]} if probs.shape[1] == BINARY else {}),
    }


def places(id_scores: Tensor, ood_scores: Tensor) -> dict[str, Tensor]:
    """Return ranks by score: `inside` (..., N) of ID samples, and `outside` (..., N') of OOD samples, int64.

    Rank 0 is the highest score. Samples with equal score share a rank, and ranks have no gaps, so ranks
    depend only on the order of scores.

    Args:
        id_scores: Shape (..., N), finite; higher is more OOD.
        ood_scores: Shape (..., N'), finite.

    Raises:
        ValueError: If either is empty or not finite, or the shapes differ before the last axis.
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


def certainty_ranks(scores: Tensor, hits: Tensor) -> Tensor:
    """Return the rank of each answer by certainty, shape (N,), int64: 0 for the lowest OOD score.

    Answers with equal score share a rank, and ranks have no gaps.

    Args:
        scores: OOD score of each answer, shape (N,); lower is more certain.
        hits: Whether the answer is correct, shape (N,), boolean or 0 and 1. NaN marks padding, which has rank
            -1.

    Raises:
        ValueError: If the score of an answer is not finite.
    """
    counted = ~hits.isnan()
    if not bool(scores[counted].isfinite().all()):
        raise ValueError("OOD scores of answers must be finite")
    ranks = torch.full(scores.shape, -1)
    ranks[counted] = scores[counted].unique(return_inverse=True)[1]
    return ranks
