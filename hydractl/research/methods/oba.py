"""Optimal Brain Apoptosis (Sun et al. 2025): which single weights a loss can do without, by exact second derivatives.

The unstructured form of the authors' `FastOBAPruner` of order 2, in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_LEAST = 1e-6
"""Added to the largest importance of a layer before it divides, as there."""


def importances(
    weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the sum over losses of w_i sum_j H_ij w_j for each weight, H the loss's Hessian over all of these weights.

    Args:
        weights: Of layers, by name; they require gradients.
        losses: Each computes one.
    """
    curvatures = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    for loss in losses:
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that can be differentiated twice
            slopes = torch.autograd.grad(loss(), [*weights.values()], create_graph=True)
            terms = [(slope * w.detach()).sum() for slope, w in zip(slopes, weights.values(), strict=True)]
            along = torch.stack(terms).sum()
            curved = torch.autograd.grad(along, [*weights.values()])
        for (name, weight), second in zip(weights.items(), curved, strict=True):
            curvatures[name] += weight.detach() * second
    return curvatures


def masks_of(
    weights: Mapping[str, torch.Tensor], curvatures: Mapping[str, torch.Tensor], keep: float
) -> dict[str, torch.Tensor]:
    """Return which weights stay: of all together, the share with the highest scores.

    A weight's score is its importance without its sign, over the largest one of its layer, plus its own size over the largest
    weight's.

    Args:
        weights: By name.
        curvatures: What `importances` returns.
        keep: The share, of which the number of weights is the whole part.
    """
    largest = max(weight.abs().max() for weight in weights.values())
    scores = {
        name: (importance := curvatures[name].abs()) / (importance.max() + _LEAST)
        + weight.detach().abs() / largest
        for name, weight in weights.items()
    }
    every = torch.cat([score.flatten() for score in scores.values()])
    keep_mask = torch.zeros_like(every, dtype=torch.bool)
    keep_mask[every.topk(int(keep * len(every))).indices] = True
    parts = keep_mask.split([score.numel() for score in scores.values()])
    return {name: part.view(scores[name].shape) for name, part in zip(scores, parts, strict=True)}
