"""How good are the predicted probabilities? Accuracy and the two proper scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hydractl.metrics.checks import check_labels, check_probs

if TYPE_CHECKING:
    from torch import Tensor


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose most probable class is the label, in [0, 1].

    Equal probabilities: the lowest class is the prediction.

    Args:
        probs: Shape (B, C), rows summing to 1.
        labels: Shape (B,), integer, in 0..C-1.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    check_probs(probs)
    check_labels(labels, samples=probs.shape[0], classes=probs.shape[1])
    return float((probs.argmax(1) == labels).double().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Return the Brier score: squared error summed over classes, mean over samples, in [0, 2].

    Brier (1950), eq. 2; not divided by C.

    Args:
        probs: Shape (B, C), rows summing to 1.
        labels: Shape (B,), integer, in 0..C-1.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    check_probs(probs)
    check_labels(labels, samples=probs.shape[0], classes=probs.shape[1])
    error = probs.double() - torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return float(error.square().sum(1).mean())


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Return the mean negative log-likelihood of the labels, in nats, in [0, inf].

    Takes logarithms, so that a probability too small for its dtype is large here and not infinite.

    Args:
        log_probs: Shape (B, C), natural logarithms of rows summing to 1, as log-softmax gives them. -inf is
            a probability of exactly 0.
        labels: Shape (B,), integer, in 0..C-1.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    check_probs(log_probs.double().exp())
    check_labels(labels, samples=log_probs.shape[0], classes=log_probs.shape[1])
    chosen = torch.gather(log_probs.double(), 1, labels.long()[:, None])
    return float(-chosen.mean())
