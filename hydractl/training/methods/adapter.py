"""How a model trains by a method: which weights it makes of others, and which tensors it changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.families.base import Family, Place, place_of
from hydractl.manifest.header import Header
from hydractl.plugins import load
from hydractl.training.feeding import Feed, ItemFeed
from hydractl.training.methods.base import TrainingMethod
from hydractl.training.weight_sites import Site, sites_of


class Adapter:
    """How a model trains by a method: one for a run, which builds the model several times."""

    data = 0
    """Number of batches that it needs before training."""
    repeat = 1
    """Number of times that an epoch uses each sample."""

    def __init__(self, method: TrainingMethod, members: int) -> None:
        """Take up the method's options.

        Args:
            method: What `--method` says.
            members: Of the hydra that trains; 1 for another model.
        """
        self.method, self.members = method, members

    def check_base(self, model: str, header: Header) -> None:
        """Refuse a base whose copies could not be trained so once they are fused.

        Args:
            model: What messages call it.
            header: Of it.

        Raises:
            UsageError: If it is one.
        """

    def check(self, model: str, header: Header) -> None:
        """Refuse a model that cannot be trained so; by default a hydra, which has no single weight to make others of.

        Raises:
            UsageError: If it is one.
        """
        if header.plan is not None:
            raise UsageError(
                f"`--method {self.method.KIND}`: {model} is a hydra, but the method trains a single model",
                hint="leave out `--method`, or give a base or a member",
            )

    def feed(self, feed: ItemFeed) -> Feed:
        """Return the batches that training sees, made of those of the data: other ones if each member has samples of its own."""
        return feed

    def own(self, sites: Mapping[str, Site], names: Collection[str]) -> list[str]:
        """Return the weights that are made of others, sorted; of `names`, which may train."""
        return sorted(name for name, site in sites.items() if name in names and self.fits(site))

    def fits(self, site: Site) -> bool:
        """Return whether a layer is of the kind that it is for: by default any linear one of the blocks."""
        return isinstance(site.layer, nn.Linear) and site.place.layer is not None

    def changes(self, parametrized_names: Collection[str], places: Mapping[str, Place]) -> set[str]:
        """Return which tensors are others after training: those of `own`, and the classifier.

        Args:
            parametrized_names: What is made of others.
            places: Of all that may train.
        """
        return {*parametrized_names, *(name for name, place in places.items() if place.part == "head")}

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


def adapter_of(method: TrainingMethod | None, members: int) -> Adapter | None:
    """Return how a model trains by a method, None where every weight changes; `members` are those of a hydra."""
    if method is None or method.ADAPTER is None:
        return None
    adapter: Adapter = load(method.ADAPTER)(method, members)
    return adapter


class SideBySide(nn.Module):
    """What a method adds to a layer so that members of a hydra see an image each in one pass.

    Attributes:
        images: What members see now, M times (B, C, height, width); None where all see the same image.
    """

    def __init__(self) -> None:
        super().__init__()
        self.images: Sequence[torch.Tensor] | None = None

    @contextlib.contextmanager
    def seeing(self, images: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let each member see an image of its own within the block."""
        self.images = images
        try:
            yield
        finally:
            self.images = None


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
    parametrized_names = adapter.own(sites_of(family, model, state), names)
    if not parametrized_names:
        raise UsageError(
            "none of the trained layers can use the method",
            hint=(
                "train more layers without `--train`, `--last-blocks` and `--freeze-blocks`, or use another method"
            ),
        )
    return tuple(
        sorted(adapter.changes(parametrized_names, {name: place_of(family, name) for name in names}))
    )
