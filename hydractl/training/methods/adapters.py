"""What each method makes weights of, and which tensors of a model it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import nn
from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.families.base import Family, Place, Role, place_of
from hydractl.training.methods.oba import importances, masks_of
from hydractl.training.methods.reference import LoraEnsemble, Method, Oba, SingularValues
from hydractl.training.methods.weights import LowRank, Masked, Site, Spectrum, make, sites_of


class Adapter:
    """How a model trains by a method: one for a run, which builds the model several times."""

    data = 0
    """How many batches it must see before training."""

    def own(self, sites: Mapping[str, Site], names: Collection[str]) -> list[str]:
        """Return the weights that are made of others, sorted; of `names`, which may train."""
        return sorted(name for name, site in sites.items() if name in names and self.fits(site))

    def fits(self, site: Site) -> bool:
        """Return whether a layer is of the kind that it is for."""
        del site
        return True

    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        """Return which tensors are others after training: those of `own`, and the classifier.

        Args:
            own: What is made of others.
            places: Of all that may train.
        """
        return {*own, *(name for name, place in places.items() if place.part == "head")}

    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        """Take in what it must know of the data.

        Args:
            weights: Those of `own`.
            losses: Each computes that of a batch, as training begins.
        """

    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        """Let a model train so; what it computes may be another from then on.

        Args:
            sites: Of the model.
            names: What may train.
        """
        raise NotImplementedError


class Lora(Adapter):
    """Adds a product of low rank to the projections of attention."""

    def __init__(self, method: LoraEnsemble, seed: int) -> None:
        self.method, self.seed = method, seed

    @override
    def fits(self, site: Site) -> bool:
        return site.place.heads is not None and site.place.heads.role in {Role.INPUT, Role.OUTPUT}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        generator, method = torch.Generator().manual_seed(self.seed), self.method
        for site in [sites[name] for name in self.own(sites, names)]:
            low = LowRank(
                site.layer.weight,
                rank=method.rank,
                scale=method.alpha / method.rank,
                projections=site.place.heads.copies if site.place.heads else 1,
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
    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return super().changes(own, places) | (set(map(_bias, own)) & places.keys())

    @override
    @torch.no_grad()
    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def noise(like: torch.Tensor) -> torch.Tensor:
            return self.method.spread * torch.randn(like.shape, generator=generator)

        for name in self.own(sites, names):
            layer = sites[name].layer
            if name not in self.parts:
                self.parts[name] = torch.linalg.svd(layer.weight, full_matrices=False)
            u, s, v = self.parts[name]
            if _bias(name) in names:
                layer.bias.add_(noise(layer.bias))
            make(sites[name], Spectrum(u, s * (1 + noise(s)), v))


class Apoptosis(Adapter):
    """Sets single weights of the blocks' linear layers to zero for good, and trains everything."""

    def __init__(self, method: Oba) -> None:
        self.method, self.data = method, method.batches
        self.masks: dict[str, torch.Tensor] = {}

    @override
    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return set(places)

    @override
    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        masks = masks_of(weights, importances(weights, losses), self.method.keep)
        self.masks = {name: mask.cpu() for name, mask in masks.items()}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str]) -> None:
        for name in self.own(sites, names):
            make(sites[name], Masked(self.masks[name]), trains=True)


def adapter_of(method: Method, seed: int) -> Adapter:
    """Return how a model trains by a method.

    Args:
        method: With its options.
        seed: Of what a member begins with.
    """
    if isinstance(method, LoraEnsemble):
        return Lora(method, seed)
    return Spectra(method, seed) if isinstance(method, SingularValues) else Apoptosis(method)


def changed(
    adapter: Adapter,
    family: Family,
    model: nn.Module,
    state: Mapping[str, torch.Tensor],
    names: Collection[str],
) -> tuple[str, ...]:
    """Return which of the tensors `names` of a model are others after training, sorted.

    Raises:
        UsageError: If none of them is made by the method.
    """
    own = adapter.own(sites_of(family, model, state), names)
    if not own:
        raise UsageError(
            "the method finds no layer of its kind among what trains",
            hint="leave out `--train`, `--last-blocks` and `--freeze-blocks`",
        )
    return tuple(sorted(adapter.changes(own, {name: place_of(family, name) for name in names})))


def _bias(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"
