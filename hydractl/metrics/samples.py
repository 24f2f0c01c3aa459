"""What metrics read of predictions: one number a sample, so that resampling is picking samples.

Axes: M members, N samples of ID and N' of OOD data, C classes; dots are candidates, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.metrics.checks import check_labels, check_probs


class Responses(NamedTuple):
    """What members say of samples.

    Attributes:
        log_probs: Natural logarithms of probabilities, (M, N, C).
        logsumexp: Of the logits, (M, N), which are `log_probs` and it together; None where it was not kept.
    """

    log_probs: Tensor
    logsumexp: Tensor | None = None

    def logits(self) -> Tensor:
        """Return the logits (M, N, C) in float64.

        Raises:
            ValueError: If they are not known.
        """
        if self.logsumexp is None:
            raise ValueError("the predictions are log-probabilities alone, which do not tell logits")
        return self.log_probs.double() + self.logsumexp.double().unsqueeze(-1)

    def tensors(self) -> tuple[Tensor, ...]:
        """Return what is known."""
        return tuple(x for x in self if x is not None)

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield them with at most so many samples at a time, in order."""
        for part in zip(*(x.split(samples, 1) for x in self.tensors()), strict=True):
            yield Responses(*part)


def ensemble_log_probs(member_log_probs: Tensor) -> Tensor:
    """Return `log mean_m p_m` (...), an ensemble's prediction, of its members' log-probabilities (M, ...)."""
    return member_log_probs.logsumexp(0) - math.log(len(member_log_probs))


def at_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Return the entries (..., N) of values (..., N, C) that belong to labels (N,), int64."""
    return values.gather(-1, labels.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def answers(probs: Tensor, labels: Tensor, *, log_probs: Tensor | None = None) -> dict[str, Tensor]:
    """Return what metrics of labelled data read, each (N,), float64 but for the boolean hits.

    `hits` says whether the most probable class is the label (of equal ones the lowest is the prediction), `confidence` is the
    probability of the former, `nll` the negative logarithm of the latter's in nats, `error` the squared error summed over
    classes.

    Args:
        probs: Shape (N, C), rows summing to 1.
        labels: Shape (N,), integer, in 0..C-1.
        log_probs: Their natural logarithms where they are known: a probability may be too small for its dtype, which must
            not make its logarithm infinite.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    check_probs(probs)
    check_labels(labels, samples=probs.shape[0], classes=probs.shape[1])
    confidence, predicted = probs.max(1)
    error = probs.double() - torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return {
        "hits": predicted == labels,
        # a row of low precision may sum to a little more than 1, and bins end at 1
        "confidence": confidence.double().clamp(max=1.0),
        "nll": -at_labels((probs.log() if log_probs is None else log_probs).double(), labels.long()),
        "error": error.square().sum(1),
    }


def places(id_scores: Tensor, ood_scores: Tensor) -> dict[str, Tensor]:
    """Return the `inside` (..., N) and `outside` (..., N') samples' places by score, int64: 0 is the highest score.

    Samples of equal score share a place, and no place is empty, so that nothing depends on more than the order.

    Args:
        id_scores: Shape (..., N), finite; higher is more OOD.
        ood_scores: Shape (..., N'), finite.

    Raises:
        ValueError: If either is empty or not finite, or they are not those of the same candidates.
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
    found = torch.zeros_like(order)
    found.scatter_(-1, order[..., 1:], (ordered[..., 1:] != ordered[..., :-1]).cumsum(-1))
    inside, outside = found.split([id_scores.shape[-1], ood_scores.shape[-1]], -1)
    return {"inside": inside, "outside": outside}
