"""Layers whose weights can be made of others in each step, by parametrizations of torch.

What lies in files is the weight that is made, in the place of the one that it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrize

from hydractl.families.base import Family, Place, place_of

MADE, ORIGINAL = ".parametrizations.", ".original"
"""Part of the names of parameters from which a weight is computed, and suffix of the one in the file."""


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
    layers = {n: site.layer for n, site in sites.items() if parametrize.is_parametrized(site.layer, "weight")}
    biases = {bias_of(name): layer.bias for name, layer in layers.items()}
    return {name: layer.weight.detach() for name, layer in layers.items()} | {
        name: bias.detach() for name, bias in biases.items() if bias is not None
    }


def bias_of(weight: str) -> str:
    """Return what the bias beside a weight is called."""
    return weight.removesuffix("weight") + "bias"
