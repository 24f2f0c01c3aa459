"""Weights that are made of others in each step: torch's parametrizations, on the linear layers of a model.

What lies in files is the weight that is made, in the place of the one that it was made of.

Axes: O outputs, D inputs, P projections in one matrix, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize
from typing_extensions import override

from hydractl.families.base import Family, Place, place_of

MADE, ORIGINAL = ".parametrizations.", ".original"
"""What the names of parameters hold that a weight is made of; and how that of the one in the file ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A linear layer or a convolution whose weight can be made of others, and where it stands in the library's model."""

    name: str
    layer: nn.Linear | nn.Conv2d
    place: Place


def sites_of(family: Family, model: nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, Site]:
    """Return the linear layers and convolutions of a model that have weights, by the names of these, sorted.

    Args:
        family: Says where a tensor stands.
        model: Before anything is made of others in it.
        state: Its tensors by the library's names, the very ones.
    """
    names = {id(tensor): name for name, tensor in state.items()}
    layers = {
        names[id(layer.weight)]: layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.numel() and id(layer.weight) in names
    }
    places = {name: place_of(family, name) for name in layers}
    return {name: Site(name=name, layer=layer, place=places[name]) for name, layer in sorted(layers.items())}


def make(site: Site, how: nn.Module, *, trains: bool = False) -> None:
    """Let `how` make a layer's weight of that in the file, which goes on training itself or not."""
    site.layer.weight.requires_grad = trains
    parametrize.register_parametrization(site.layer, "weight", how)


@torch.no_grad()
def realised(sites: Mapping[str, Site]) -> dict[str, torch.Tensor]:
    """Return the weights that are made of others, as they are now, and their layers' biases, by the library's names."""
    made = {n: site.layer for n, site in sites.items() if parametrize.is_parametrized(site.layer, "weight")}
    biases = {bias_of(name): layer.bias for name, layer in made.items()}
    return {name: layer.weight.detach() for name, layer in made.items()} | {
        name: bias.detach() for name, bias in biases.items() if bias is not None
    }


def bias_of(weight: str) -> str:
    """Return what the bias beside a weight is called."""
    return weight.removesuffix("weight") + "bias"


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
        drawn = torch.rand(projections, rank, inputs, generator=generator)
        self.a_weight = nn.Parameter((2 * drawn - 1) / math.sqrt(inputs))
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
        made: torch.Tensor = (u * self.values.clamp(min=0)) @ v
        return made.to(weight.dtype)


class Masked(nn.Module):
    """W, of which some weights are zero."""

    def __init__(self, kept: torch.Tensor) -> None:
        """Take up which weights stay, (O, D)."""
        super().__init__()
        self.register_buffer("kept", kept, persistent=False)

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
