"""What weights are made of in each step: parametrizations of torch, for the linear layers of a model.

Axes: O outputs, D inputs, P projections in one matrix, R rank.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import nn
from typing_extensions import override


class LowRank(nn.Module):
    """W + scale B A, for each of P projections that lie in one matrix by itself (Hu et al. 2022, section 4.1)."""

    def __init__(
        self, weight: torch.Tensor, *, rank: int, scale: float, projections: int, generator: torch.Generator
    ) -> None:
        """Draw A as peft does, uniform within 1 / sqrt(D); B is zero, so that nothing has changed yet.

        Args:
            weight: W, (O, D).
            rank: R.
            scale: Of what is added.
            projections: P, a divisor of O.
            generator: What A is drawn with.
        """
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = scale
        # their names say, as others do, that weight decay applies
        uniform = torch.rand(projections, rank, inputs, generator=generator)
        self.a_weight = nn.Parameter((2 * uniform - 1) / math.sqrt(inputs))
        self.b_weight = nn.Parameter(torch.zeros(projections, outputs // projections, rank))

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight + self.scale * (self.b_weight @ self.a_weight).flatten(0, 1)


class Spectrum(nn.Module):
    """U S V of fixed U and V, with S at least zero."""

    def __init__(self, u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> None:
        """Take up a decomposition.

        Args:
            u: Of shape (O, R).
            s: What trains, (R,).
            v: Of shape (R, D).
        """
        super().__init__()
        self.register_buffer("u", u, persistent=False)
        self.register_buffer("v", v, persistent=False)
        self.values = nn.Parameter(s)

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        u, v = cast("torch.Tensor", self.u), cast("torch.Tensor", self.v)
        product: torch.Tensor = (u * self.values.clamp(min=0)) @ v
        return product.to(weight.dtype)


class Masked(nn.Module):
    """W, of which some weights are zero."""

    def __init__(self, keep_mask: torch.Tensor) -> None:
        """Take up which weights stay, (O, D)."""
        super().__init__()
        self.register_buffer("kept", keep_mask, persistent=False)

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight * cast("torch.Tensor", self.kept)


class Outer(nn.Module):
    """W o (s r), of a vector for each side (Wen et al. 2020, equation 1): its layer's W (r o x) o s."""

    def __init__(self, r: torch.Tensor, s: torch.Tensor) -> None:
        """Take up what a member has for itself.

        Args:
            r: Of inputs, (D,).
            s: Of outputs, (O,).
        """
        super().__init__()
        self.r, self.s = nn.Parameter(r), nn.Parameter(s)

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight * self.s[:, None] * self.r
