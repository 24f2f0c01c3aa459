"""Does a confidence of 0.8 mean right eight times in ten? Calibration errors of the predicted class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hydractl.metrics.checks import check_labels, check_probs

if TYPE_CHECKING:
    from torch import Tensor


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error with bins of equal width, in [0, 1].

    The bin-weighted l1 gap between the mean confidence and the accuracy of the most probable class (Guo et al.
    2017, eq. 3). Bins are those of torchmetrics' MulticlassCalibrationError: [lo, hi), edges and confidences
    in float32, and a confidence of exactly 1 in a bin of its own; an empty bin weighs nothing. Sums are in
    float64. Equal probabilities: the lowest class is the prediction.

    Args:
        probs: Shape (B, C), rows summing to 1.
        labels: Shape (B,), integer, in 0..C-1.
        bins: How many bins divide [0, 1), at least 1.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    confidence, correct = _top_label(probs, labels, bins=bins)
    return float(ece_many(confidence[None], correct[None], bins=bins)[0])


def ece_many(confidence: Tensor, correct: Tensor, *, bins: int = 15) -> Tensor:
    """Return `ece` of K candidates at once.

    Args:
        confidence: Of the predicted class, shape (K, N), in [0, 1].
        correct: Whether it is the label, shape (K, N), boolean or 0 and 1.
        bins: How many bins divide [0, 1), at least 1.

    Returns:
        Shape (K,), float64, in [0, 1].

    Raises:
        ValueError: If the shapes differ or are no matrix, there is no sample, or a confidence is out of its range.
    """
    if confidence.ndim != 2 or confidence.shape != correct.shape or not confidence.shape[1]:
        raise ValueError(
            f"confidence and correctness must be one matrix each with a sample, got {tuple(confidence.shape)} and "
            f"{tuple(correct.shape)}"
        )
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError("confidences must lie in [0, 1]")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float32, device=confidence.device)
    index = torch.bucketize(confidence.float().contiguous(), edges, right=True) - 1
    gap = torch.zeros(len(confidence), bins + 1, dtype=torch.float64, device=confidence.device)
    gap.scatter_add_(1, index, correct.double() - confidence.double())
    return gap.abs().sum(1) / confidence.shape[1]


def adaptive_ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Return the expected calibration error with bins of equal count, in [0, 1].

    Samples are sorted by confidence and split as `torch.tensor_split` does, the first bins holding one more
    when the count does not divide (Nguyen and O'Connor 2015, section 3; torch-uncertainty's
    AdaptiveCalibrationError). Equal confidences keep the order of the samples, so the value can depend on that
    order when such a run crosses a bin's edge.

    Args:
        probs: Shape (B, C), rows summing to 1.
        labels: Shape (B,), integer, in 0..C-1.
        bins: How many bins, at least 1. With fewer samples than bins the rest are empty and weigh nothing.

    Raises:
        ValueError: If a shape or a value is out of its range.
    """
    confidence, correct = _top_label(probs, labels, bins=bins)
    order = torch.argsort(confidence, stable=True)
    gaps = torch.tensor_split((correct - confidence)[order], bins)
    return float(torch.stack([gap.sum().abs() for gap in gaps]).sum() / len(confidence))


def _top_label(probs: Tensor, labels: Tensor, *, bins: int) -> tuple[Tensor, Tensor]:
    """Return the confidence of the predicted class and whether it is the label, both (B,) float64."""
    check_probs(probs)
    check_labels(labels, samples=probs.shape[0], classes=probs.shape[1])
    if bins < 1:
        raise ValueError(f"there must be at least one bin, got {bins}")
    predicted = probs.argmax(1, keepdim=True)
    # A row of low precision may sum to a little more than 1, and bins end at 1.
    confidence = probs.gather(1, predicted)[:, 0].double().clamp(max=1.0)
    return confidence, (predicted[:, 0] == labels).double()
