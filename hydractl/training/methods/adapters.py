"""What each method makes weights of, and which tensors of a model it changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import nn
from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.families.base import Family, Role, place_of
from hydractl.training.methods.reference import LoraEnsemble, Method, SingularValues
from hydractl.training.methods.weights import LowRank, Site, Spectrum, make, sites_of


class Adapter(Protocol):
    """How a model trains by a method; one for a run, which may build the model several times."""

    def changes(self, sites: Mapping[str, Site], names: Collection[str]) -> set[str]:
        """Return which of the tensors `names`, besides the classifier's, are others afterwards."""

    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        """Let a model train so; what it computes may differ a little from then on.

        Args:
            sites: Of the model.
            names: What may train: as `changed` returns it.
        """


class Lora(Adapter):
    """Adds a product of low rank to the projections of attention."""

    def __init__(self, method: LoraEnsemble, seed: int) -> None:
        self.method, self.seed = method, seed

    @override
    def changes(self, sites: Mapping[str, Site], names: Collection[str]) -> set[str]:
        roles = {name: site.place.heads.role for name, site in sites.items() if site.place.heads}
        return {name for name, role in roles.items() if role in {Role.INPUT, Role.OUTPUT} and name in names}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        for name in sorted(self.changes(sites, names)):
            site, method = sites[name], self.method
            projections = site.place.heads.copies if site.place.heads else 1
            low = LowRank(
                site.layer.weight,
                rank=method.rank,
                scale=method.alpha / method.rank,
                projections=projections,
                generator=generator,
            )
            make(site, low)


class Spectra(Adapter):
    """Trains singular values and biases of all linear layers of the blocks."""

    def __init__(self, method: SingularValues, seed: int) -> None:
        self.method, self.seed = method, seed
        self.parts: dict[
            str, tuple[torch.Tensor, ...]
        ] = {}  # a decomposition takes long, and is the same each time

    @override
    def changes(self, sites: Mapping[str, Site], names: Collection[str]) -> set[str]:
        own = {name for name in sites if name in names}
        return own | ({_bias(name) for name in own} & set(names))

    @override
    @torch.no_grad()
    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def noise(like: torch.Tensor) -> torch.Tensor:
            return self.method.spread * torch.randn(like.shape, generator=generator)

        for name in sorted(self.changes(sites, names) & sites.keys()):
            layer = sites[name].layer
            if name not in self.parts:
                self.parts[name] = torch.linalg.svd(layer.weight, full_matrices=False)
            u, s, v = self.parts[name]
            if _bias(name) in names:
                layer.bias.add_(noise(layer.bias))
            make(sites[name], Spectrum(u, s * (1 + noise(s)), v))


def adapter_of(method: Method, seed: int) -> Adapter:
    """Return how a model trains by a method.

    Args:
        method: With its options.
        seed: Of what a member begins with.
    """
    return Lora(method, seed) if isinstance(method, LoraEnsemble) else Spectra(method, seed)


def changed(
    adapter: Adapter,
    family: Family,
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    names: Collection[str],
) -> tuple[str, ...]:
    """Return which of the tensors `names` of a model are others after training, the classifier's among them, sorted.

    Raises:
        UsageError: If there would be no other than the classifier's.
    """
    own = adapter.changes(sites_of(family, model, state), names)
    if not own:
        raise UsageError(
            "the method finds no layer of its kind among what trains",
            hint="leave out `--train`, `--last-blocks` and `--freeze-blocks`",
        )
    return tuple(sorted(own | {name for name in names if place_of(family, name).part == "head"}))


def _bias(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"
