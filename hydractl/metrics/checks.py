"""Validation of the tensors of metrics. Importing this module does not load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Rows of a bfloat16 softmax over a thousand classes sum to 1 within about 0.4 %.
ROW_SUM_TOLERANCE = 1e-2


def check_probs(probs: Tensor, *, dims: int = 2) -> None:
    """Check that a tensor is a non-empty stack of probability vectors.

    Args:
        probs: Classes C on the last axis; samples or members on all others.
        dims: Required number of axes.

    Raises:
        ValueError: If the shape is wrong or empty, a value is not finite or negative, or a row does not sum
            to 1 within 1e-2, as logits would not.
    """
    if probs.ndim != dims or probs.numel() == 0:
        raise ValueError(f"probabilities must have {dims} non-empty axes, got shape {tuple(probs.shape)}")
    if not bool(probs.isfinite().all()):
        raise ValueError("probabilities must be finite")
    if bool((probs < 0).any()):
        raise ValueError("probabilities must not be negative; pass probabilities, not logits")
    worst = float((probs.double().sum(-1) - 1).abs().max())
    if worst > ROW_SUM_TOLERANCE:
        raise ValueError(f"probabilities must sum to 1 over classes, but a row is off by {worst:.3g}")


def check_labels(labels: Tensor, *, samples: int, classes: int) -> None:
    """Check that labels have one class index per sample.

    Args:
        labels: Shape (B,), integer, in 0..C-1.
        samples: B.
        classes: C.

    Raises:
        ValueError: If shape, dtype or range is wrong.
    """
    if labels.shape != (samples,):
        raise ValueError(f"labels must have shape ({samples},), got {tuple(labels.shape)}")
    if not str(labels.dtype).startswith(("torch.int", "torch.uint")):
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, got {low}..{high}")
