"""Training of some weights of a model, or of weights that are computed from other tensors by parametrizations of torch.

A file stores the computed weight under the name of the original one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize
from typing_extensions import override

from hydractl.errors import UsageError
from hydractl.families.base import Family, Place, place_of
from hydractl.manifest.header import Header
from hydractl.messages import counted
from hydractl.metrics.per_sample import question_losses
from hydractl.model_inputs import inputs_on
from hydractl.progress import Progress
from hydractl.research.methods.options import TrainingMethod, TrainingOptions
from hydractl.runtime import on_device
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.trainable import TrainableModel, Training
from hydractl.tasks import Task
from hydractl.training.accelerator import Engine, Share
from hydractl.training.feeding import Feed, ItemFeed, Piece
from hydractl.training.trainer import Job

PARAMETRIZED, ORIGINAL = ".parametrizations.", ".original"
"""Part of the names of parameters from which a weight is computed, and suffix of the one in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A linear layer or a convolution with a weight, and its place in the library's model."""

    layer: nn.Linear | nn.Conv2d
    place: Place


def sites_of(family: Family, model: nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, Site]:
    """Return the linear layers and convolutions of a model by the names of their weights, sorted.

    Args:
        family: Gives the place of a tensor.
        model: A model without parametrizations.
        state: The tensors of the model by the library's names.
    """
    names = {id(tensor): name for name, tensor in state.items()}
    layers = {
        names[id(layer.weight)]: layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.numel() and id(layer.weight) in names
    }
    return {name: Site(layer=layer, place=place_of(family, name)) for name, layer in sorted(layers.items())}


def make(site: Site, how: nn.Module, *, trains: bool = False) -> None:
    """Compute the weight of a layer by `how` from its original weight, which trains or not."""
    site.layer.weight.requires_grad = trains
    parametrize.register_parametrization(site.layer, "weight", how)


@torch.no_grad()
def realised(sites: Mapping[str, Site]) -> dict[str, torch.Tensor]:
    """Return the computed weights and the biases of their layers by the library's names."""
    layers = {n: site.layer for n, site in sites.items() if parametrize.is_parametrized(site.layer, "weight")}
    biases = {bias_of(name): layer.bias for name, layer in layers.items()}
    return {name: layer.weight.detach() for name, layer in layers.items()} | {
        name: bias.detach() for name, bias in biases.items() if bias is not None
    }


def bias_of(weight: str) -> str:
    """Return the name of the bias of a layer from the name of its weight."""
    return weight.removesuffix("weight") + "bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedModel(TrainableModel):
    """A model with computed weights.

    Attributes:
        sites: Layers by the names of their weights: of each model, or of a hydra once.
    """

    sites: tuple[Mapping[str, Site], ...]

    @override
    def tensors(self) -> list[dict[str, torch.Tensor]]:
        computed = [realised(model_sites) for model_sites in self.sites]
        # members of a hydra share the computed weights
        computed *= len(self.states) // len(computed)
        states = tuple(dict(state) | tensors for state, tensors in zip(self.states, computed, strict=True))
        return TrainableModel(
            module=self.module, states=states, header=self.header, family=self.family
        ).tensors()

    @override
    def tensor_names(self) -> dict[int, str]:
        names = TrainableModel.tensor_names(self)
        for name, site in (pair for sites in self.sites for pair in sites.items()):
            names |= {id(weight): name for weight in site.layer.parameters() if id(weight) not in names}
        return names


class SeededTraining(Training):
    """Full fine-tuning with seeds of its own for the order of the data and for dropout."""

    def __init__(self, config: FinetuneConfig, header: Header) -> None:
        super().__init__(config, header)
        self.options = next(e for e in config.extensions if isinstance(e, TrainingOptions))

    @override
    def open_feed(
        self,
        feed: ItemFeed,
        load: Callable[[], TrainableModel],
        names: Collection[str],
        engine: Engine,
        progress: Progress,
    ) -> Feed:
        return self.seeded(feed)

    def seeded(self, feed: ItemFeed) -> ItemFeed:
        """Return the batches with the seed of the order."""
        seed = self.options.order_seed
        return feed if seed is None else replace(feed, seed=seed)

    @override
    def change_job(self, job: Job) -> Job:
        seed = self.options.dropout_seed
        if seed is None:
            return job
        repulsion = None if job.repulsion is None else replace(job.repulsion, seed=seed)
        return replace(job, seed=seed, repulsion=repulsion)


class Adapter(SeededTraining):
    """Training by a method that computes weights from other tensors. A run has one adapter and builds the model several times."""

    trains_all = False
    inspected_batches = 0
    """Number of batches that the method inspects before training."""

    def __init__(self, config: FinetuneConfig, header: Header) -> None:
        super().__init__(config, header)
        self.members = len(header.masks)
        self.method = cast("TrainingMethod", self.options.trains_by)

    def check_model(self) -> None:
        """Refuse a hydra by default, because it has several weights in the place of one."""
        if self.header.plan is not None:
            raise UsageError(
                f"`--method {self.method.KIND}`: {self.config.model} is a hydra, but the method trains a single model",
                hint="leave out `--method`, or give a base or a member",
            )

    @override
    def check(self, task: Task, data: str) -> None:
        self.check_model()
        if not task.has_one_question:
            raise UsageError(
                f"`--method {self.options.method}`: trains models that answer one label, but `--data {data}` has {task.labels}",
                hint="leave `--method` out",
            )

    @override
    def select(
        self, family: Family, model: nn.Module, state: Mapping[str, torch.Tensor], names: Collection[str]
    ) -> tuple[str, ...]:
        parametrized_names = self.computed_names(sites_of(family, model, state), names)
        if not parametrized_names:
            raise UsageError(
                "none of the trained layers can use the method",
                hint=(
                    "train more layers without `--train`, `--last-blocks` and `--freeze-blocks`, or use another method"
                ),
            )
        places = {name: place_of(family, name) for name in names}
        return tuple(sorted(self.changes(parametrized_names, places)))

    @override
    def build(self, subject: TrainableModel, names: Collection[str]) -> TrainableModel:
        models = self.models_of(subject)
        # members of a hydra share their names, so the first state suffices
        sites = tuple(sites_of(subject.family, *pair) for pair in zip(models, subject.states, strict=False))
        generator = torch.Generator().manual_seed(self.config.seed)
        for model_sites in sites:
            self.attach(model_sites, names, generator)
        return AdaptedModel(
            module=subject.module,
            states=subject.states,
            header=subject.header,
            family=subject.family,
            sites=sites,
        )

    def models_of(self, subject: TrainableModel) -> list[nn.Module]:
        """Return the models that train together; by default the model itself."""
        return [subject.module]

    @override
    def open_feed(
        self,
        feed: ItemFeed,
        load: Callable[[], TrainableModel],
        names: Collection[str],
        engine: Engine,
        progress: Progress,
    ) -> Feed:
        seeded = self.seeded(feed)
        if self.inspected_batches:
            self._inspect(seeded, load(), names, engine, progress)
        return self.wrap(seeded)

    def wrap(self, feed: ItemFeed) -> Feed:
        """Return the batches of training, derived from the batches of the data."""
        return feed

    def _inspect(
        self,
        feed: ItemFeed,
        subject: TrainableModel,
        names: Collection[str],
        engine: Engine,
        progress: Progress,
    ) -> None:
        """Pass batches to `look`. Each process passes all of them, so that all get the same result."""
        sites = sites_of(subject.family, subject.module, subject.states[0])
        model, device = subject.module.to(engine.device).eval(), engine.device
        count = min(self.inspected_batches, feed.steps_per_epoch)
        accumulate = self.config.recipe.accumulate
        progress.step(f"Checking {counted(count, 'batch', 'batches')}")

        def loss(piece: Piece) -> torch.Tensor:
            logits = model(inputs_on(piece.inputs, device))
            return question_losses(logits, on_device(piece.labels, device)).mean() * piece.weight

        pieces = (piece for step in feed.steps(0, count, Share(0, accumulate, accumulate)) for piece in step)
        weights = {name: sites[name].layer.weight for name in self.computed_names(sites, names)}
        self.look(weights, (partial(loss, piece) for piece in pieces))

    @override
    def is_own(self, parameter: str) -> bool:
        return PARAMETRIZED not in parameter or parameter.endswith(ORIGINAL)

    def computed_names(self, sites: Mapping[str, Site], names: Collection[str]) -> list[str]:
        """Return the names of computed weights among `names`, sorted."""
        return sorted(name for name, site in sites.items() if name in names and self.fits(site))

    def fits(self, site: Site) -> bool:
        """Return whether the method applies to a layer: by default to any linear layer of the blocks."""
        return isinstance(site.layer, nn.Linear) and site.place.layer is not None

    def changes(self, parametrized_names: Collection[str], places: Mapping[str, Place]) -> set[str]:
        """Return the names of tensors that training changes: computed weights and the classifier.

        Args:
            parametrized_names: Names of computed weights.
            places: Places of all tensors that may train.
        """
        return {*parametrized_names, *(name for name, place in places.items() if place.part == "head")}

    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        """Inspect the losses of batches before training.

        Args:
            weights: Weights of `computed_names`.
            losses: Each function computes the loss of a batch.
        """

    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        """Add parametrizations to a model; its outputs may change.

        Args:
            sites: Layers of the model.
            names: Names of tensors that may train.
            generator: Draws initial values; models that train together continue it in turn.
        """
