"""Gates by finite differences on the library's own models: what gradients with respect to them must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.model_inputs import cut_batch
from support import naive

if TYPE_CHECKING:
    from torch import nn

    from hydractl.model_inputs import Inputs

STEP = 3e-3
"""Wide enough that single precision inside a library (ModernBERT's rotations) leaves six digits."""
STENCIL = {1: 8 / 12, -1: -8 / 12, 2: -1 / 12, -2: 1 / 12}
"""Weights of the five-point rule, whose error is of the fourth order."""


def losses(library: nn.Module, inputs: Inputs, labels: torch.Tensor, *, batch: int = 4) -> torch.Tensor:
    """Return each sample's cross-entropy (B,)."""
    with torch.no_grad():
        logits = torch.cat([library(x) for x in cut_batch(inputs, batch)])
    return F.cross_entropy(logits, labels, reduction="none")


def gradients(library: nn.Module, inputs: Inputs, labels: torch.Tensor) -> torch.Tensor:
    """Return ∂L_b/∂ξ_lh (B, L, H), layers of all towers in turn: a gate on a head's output scales its columns of W_O."""
    found = []
    for weight in naive.output_weights(library):
        row = []
        for head in range(weight.shape[1] // naive.WIDTH):
            columns = slice(head * naive.WIDTH, (head + 1) * naive.WIDTH)
            kept = weight.detach()[:, columns].clone()
            slope = torch.zeros(len(labels), dtype=weight.dtype)
            for steps, share in STENCIL.items():
                with torch.no_grad():
                    weight[:, columns] = kept * (1 + steps * STEP)
                slope += share * losses(library, inputs, labels) / STEP
            with torch.no_grad():
                weight[:, columns] = kept
            row.append(slope)
        found.append(torch.stack(row, dim=1))
    return torch.stack(found, dim=1)
