"""Gradients of gates by finite differences on the libraries' models, the reference for exact gradients."""

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
"""Step of the differences, large enough for six correct digits with single precision inside a library
(ModernBERT's rotary embedding). Doubling raises the error of the five-point rule 16 times."""
STENCIL = {1: 8 / 12, -1: -8 / 12, 2: -1 / 12, -2: 1 / 12}
"""Weights of the five-point rule, whose error is of fourth order."""


def losses(library: nn.Module, inputs: Inputs, labels: torch.Tensor, *, batch: int = 4) -> torch.Tensor:
    """Return the cross-entropy of each sample, shape (B,)."""
    with torch.no_grad():
        logits = torch.cat([library(x) for x in cut_batch(inputs, batch)])
    return F.cross_entropy(logits, labels, reduction="none")


def gradients(library: nn.Module, inputs: Inputs, labels: torch.Tensor) -> torch.Tensor:
    """Return ∂L_b/∂ξ_lh, shape (B, L, H), with the layers of all towers in sequence.

    A gate on the output of a head multiplies the head's columns of W_O.
    """
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
