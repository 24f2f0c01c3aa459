"""What each method makes weights of, and which tensors of a model it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import nn
from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.families.base import Family, Place, Role, place_of
from hydractl.training.methods.mimo import Slots, stack_images
from hydractl.training.methods.oba import importances, masks_of
from hydractl.training.methods.reference import (
    BatchEnsemble,
    LoraEnsemble,
    Method,
    Mimo,
    Oba,
    Packed,
    SingularValues,
)
from hydractl.training.methods.weights import LowRank, Masked, Outer, Site, Spectrum, bias_of, make, sites_of


class Adapter:
    """How a model trains by a method: one for a run, which builds the model several times."""

    data = 0
    """How many batches it must see before training."""
    members = 1
    """How many models train together, and come out."""

    def own(self, sites: Mapping[str, Site], names: Collection[str]) -> list[str]:
        """Return the weights that are made of others, sorted; of `names`, which may train."""
        return sorted(name for name, site in sites.items() if name in names and self.fits(site))

    def fits(self, site: Site) -> bool:
        """Return whether a layer is of the kind that it is for: by default any linear one of the blocks."""
        return isinstance(site.layer, nn.Linear) and site.place.layer is not None

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

    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        """Let a model train so; what it computes may be another from then on.

        Args:
            sites: Of the model; of several that train together, of each in turn.
            names: What may train.
            generator: What it begins with is drawn with; not made anew for each model.
        """
        raise NotImplementedError


class Lora(Adapter):
    """Adds a product of low rank to the projections of attention."""

    def __init__(self, method: LoraEnsemble) -> None:
        self.method = method

    @override
    def fits(self, site: Site) -> bool:
        return site.place.heads is not None and site.place.heads.role in {Role.INPUT, Role.OUTPUT}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        method = self.method
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

    def __init__(self, method: SingularValues) -> None:
        self.method = method
        self.parts: dict[
            str, tuple[torch.Tensor, ...]
        ] = {}  # a decomposition takes long, and is the same each time

    @override
    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return super().changes(own, places) | (set(map(bias_of, own)) & places.keys())

    @override
    @torch.no_grad()
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        def noise(like: torch.Tensor) -> torch.Tensor:
            return self.method.spread * torch.randn(like.shape, generator=generator)

        for name in self.own(sites, names):
            layer = sites[name].layer
            if name not in self.parts:
                self.parts[name] = torch.linalg.svd(layer.weight, full_matrices=False)
            u, s, v = self.parts[name]
            if layer.bias is not None and bias_of(name) in names:
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
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.own(sites, names):
            make(sites[name], Masked(self.masks[name]), trains=True)


class Products(Adapter):
    """Members that share matrices, and have two vectors and a bias each of every linear layer, the classifier's too."""

    def __init__(self, method: BatchEnsemble) -> None:
        self.method, self.members = method, method.members

    @override
    def fits(self, site: Site) -> bool:
        return isinstance(site.layer, nn.Linear) and (
            site.place.layer is not None or site.place.part == "head"
        )

    @override
    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return set(places)

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.own(sites, names):
            layer = sites[name].layer
            r, s = (
                1 + self.method.spread * torch.randn(size, generator=generator)
                for size in layer.weight.T.shape
            )
            if layer.bias is not None and bias_of(name) in names:
                layer.bias = nn.Parameter(layer.bias.detach().clone())
            make(sites[name], Outer(r, s), trains=True)


class Side(Adapter):
    """Lets members of a hydra see an image each, side by side."""

    def __init__(self, slots: int) -> None:
        self.slots = slots

    @override
    def fits(self, site: Site) -> bool:
        # a library's own kind of convolution computes otherwise
        plain = (
            type(site.layer) is nn.Conv2d and site.layer.groups == 1 and site.layer.padding_mode == "zeros"
        )
        return plain and site.place.part == "embed"

    @override
    def changes(self, own: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return set(places)

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.own(sites, names):
            layer = sites[name].layer
            slots = Slots(layer.weight, self.slots)
            make(sites[name], slots)
            stack_images(layer, slots)


def adapter_of(method: Method, members: int) -> Adapter | None:
    """Return how a model trains by a method, None if as without one; `members` are those of a hydra."""
    if isinstance(method, Packed):
        return None
    if isinstance(method, Mimo):
        return Side(members)
    if isinstance(method, LoraEnsemble):
        return Lora(method)
    if isinstance(method, SingularValues):
        return Spectra(method)
    return Apoptosis(method) if isinstance(method, Oba) else Products(method)


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
            hint="leave out `--train`, `--last-blocks` and `--freeze-blocks`, if they are given; else the model has none",
        )
    return tuple(sorted(adapter.changes(own, {name: place_of(family, name) for name in names})))
