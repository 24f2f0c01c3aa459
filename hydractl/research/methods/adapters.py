"""Training methods that compute weights by parametrizations of torch.

Optimal Brain Apoptosis (Sun et al. 2025) removes single weights by exact second derivatives of the loss. This
is the unstructured form of the authors' `FastOBAPruner` of order 2, in one step.

Axes: O outputs, D inputs, P projections in one matrix, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize
from typing_extensions import override

from hydractl import progress
from hydractl.errors import UsageError
from hydractl.families.base import Family, TensorPosition, position_of
from hydractl.families.head_slicing import TensorRole
from hydractl.families.open_model import build_checked, in_one_dtype
from hydractl.manifest.header import Header
from hydractl.messages import counted
from hydractl.metrics.per_sample import ensemble_log_probs, item_losses
from hydractl.model_inputs import Inputs, inputs_on
from hydractl.research.methods.options import (
    BatchEnsemble,
    LoraEnsemble,
    Oba,
    SingularValues,
    TrainingMethod,
    TrainingOptions,
)
from hydractl.runtime import on_device
from hydractl.tasks import Task
from hydractl.training.accelerator import Engine, Share
from hydractl.training.feeding import Feed, ItemFeed, Piece
from hydractl.training.trainable import TrainableModel, Training
from hydractl.training.trainer import Job

PARAMETRIZED, ORIGINAL = ".parametrizations.", ".original"
"""Part of the names of parameters from which a weight is computed, and suffix of the original weight's
name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A linear layer or convolution, and the place of its weight in the library's model."""

    layer: nn.Linear | nn.Conv2d
    place: TensorPosition


def sites_of(family: Family, model: nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, Site]:
    """Return the linear layers and convolutions of a model by the names of their weights, sorted.

    Args:
        family: Maps tensor names to places.
        model: A model without parametrizations.
        state: State dict of the model. Weights without a name here are omitted.
    """
    names = {id(tensor): name for name, tensor in state.items()}
    layers = {
        names[id(layer.weight)]: layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.numel() and id(layer.weight) in names
    }
    return {
        name: Site(layer=layer, place=position_of(family, name)) for name, layer in sorted(layers.items())
    }


def parametrize_weight(site: Site, parametrization: nn.Module, *, trains: bool = False) -> None:
    """Compute the weight of a layer by the parametrization `parametrization` from its original weight.

    Args:
        site: The layer.
        parametrization: The parametrization.
        trains: Whether the original weight trains too.
    """
    site.layer.weight.requires_grad = trains
    parametrize.register_parametrization(site.layer, "weight", parametrization)


@torch.no_grad()
def computed_weights(sites: Mapping[str, Site]) -> dict[str, torch.Tensor]:
    """Return the computed weights, and the biases of their layers, by the library's names."""
    layers = {n: site.layer for n, site in sites.items() if parametrize.is_parametrized(site.layer, "weight")}
    biases = {bias_of(name): layer.bias for name, layer in layers.items()}
    return {name: layer.weight.detach() for name, layer in layers.items()} | {
        name: bias.detach() for name, bias in biases.items() if bias is not None
    }


def bias_of(weight: str) -> str:
    """Return the name of a layer's bias, given the name of its weight."""
    return weight.removesuffix("weight") + "bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedModel(TrainableModel):
    """A model with computed weights.

    Attributes:
        sites: Layers by the names of their weights, for each trained model; a hydra has a single entry.
    """

    sites: tuple[Mapping[str, Site], ...]

    @override
    def tensors(self) -> list[dict[str, torch.Tensor]]:
        computed = [computed_weights(model_sites) for model_sites in self.sites]
        # All members of a hydra share the computed weights.
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
    """Full fine-tuning with separate seeds for data order and dropout."""

    options: TrainingOptions

    @override
    def open_feed(
        self, feed: ItemFeed, load: Callable[[], TrainableModel], names: Collection[str], engine: Engine
    ) -> Feed:
        return self.seeded(feed)

    def seeded(self, feed: ItemFeed) -> ItemFeed:
        """Return the feed with `--order-seed`, if given."""
        seed = self.options.order_seed
        return feed if seed is None else replace(feed, seed=seed)

    @override
    def change_job(self, job: Job) -> Job:
        if (seed := self.options.dropout_seed) is None:
            return job
        return replace(job, seed=seed, repulsion=job.repulsion and replace(job.repulsion, seed=seed))


class Adapter(SeededTraining):
    """Training by a method that computes weights from other tensors.

    The adapter of a run may build the model several times.
    """

    trains_all = False
    inspected_batches = 0
    """Number of batches that `look` receives before training; with 0, `look` is not called."""

    method: TrainingMethod

    @override
    def __post_init__(self) -> None:
        self.members = len(self.header.masks)
        self.method = cast("TrainingMethod", self.options.trains_by)

    def check_model(self) -> None:
        """Refuse a hydra, whose layers have several weights.

        Raises:
            UsageError: If the model is a hydra.
        """
        if self.header.plan is not None:
            raise UsageError(
                f"`--method {self.method.KIND}`: {self.model} is a hydra, but the method trains a single model",
                hint="leave out `--method`, or give a base or a member",
            )

    @override
    def check(self, task: Task, data: str) -> None:
        self.check_model()
        if not task.has_one_question:
            raise UsageError(
                f"`--method {self.options.method}`: trains models that answer one label, but `--train {data}` has {task.labels}",
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
                hint=("train more layers without `--train-parts` and `--trunk`, or use another method"),
            )
        return tuple(
            sorted(self.changes(parametrized_names, {name: position_of(family, name) for name in names}))
        )

    @override
    def build(self, subject: TrainableModel, names: Collection[str]) -> TrainableModel:
        models = self.models_of(subject)
        # Members of a hydra share these names, so the first state suffices.
        sites = tuple(sites_of(subject.family, *pair) for pair in zip(models, subject.states, strict=False))
        generator = torch.Generator().manual_seed(self.seed)
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
        """Return the jointly trained models; by default only the model itself."""
        return [subject.module]

    @override
    def open_feed(
        self, feed: ItemFeed, load: Callable[[], TrainableModel], names: Collection[str], engine: Engine
    ) -> Feed:
        seeded = self.seeded(feed)
        if self.inspected_batches:
            self._inspect(seeded, load(), names, engine)
        return self.wrap(seeded)

    def wrap(self, feed: ItemFeed) -> Feed:
        """Return the feed for training, derived from the feed of the data; in this base class the same feed."""
        return feed

    def _inspect(
        self, feed: ItemFeed, subject: TrainableModel, names: Collection[str], engine: Engine
    ) -> None:
        """Pass batches to `look`. Every rank passes all batches, so all ranks get the same result."""
        sites = sites_of(subject.family, subject.module, subject.states[0])
        model, device = subject.module.to(engine.device).eval(), engine.device
        count = min(self.inspected_batches, feed.steps_per_epoch)
        accumulate = self.recipe.accumulate
        progress.step(f"Checking {counted(count, 'batch', 'batches')}")

        def loss(piece: Piece) -> torch.Tensor:
            logits = model(inputs_on(piece.inputs, device))
            return item_losses(logits, on_device(piece.labels, device)).mean() * piece.weight

        pieces = (piece for step in feed.steps(0, count, Share(0, accumulate, accumulate)) for piece in step)
        weights = {name: sites[name].layer.weight for name in self.computed_names(sites, names)}
        self.look(weights, (partial(loss, piece) for piece in pieces))

    @override
    def is_own(self, parameter: str) -> bool:
        return PARAMETRIZED not in parameter or parameter.endswith(ORIGINAL)

    def computed_names(self, sites: Mapping[str, Site], names: Collection[str]) -> list[str]:
        """Return the names of the weights in `names` that the method computes, sorted."""
        return sorted(name for name, site in sites.items() if name in names and self.fits(site))

    def fits(self, site: Site) -> bool:
        """Return whether the method computes a layer's weight; by default, for linear layers of the blocks."""
        return isinstance(site.layer, nn.Linear) and site.place.layer is not None

    def changes(self, parametrized_names: Collection[str], places: Mapping[str, TensorPosition]) -> set[str]:
        """Return the names of changed tensors; by default computed weights and classifier.

        Args:
            parametrized_names: Names of computed weights.
            places: Places of all trainable tensors.
        """
        return {*parametrized_names, *(name for name, place in places.items() if place.part == "head")}

    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        """Inspect the losses of batches before training. The base class ignores the losses.

        Args:
            weights: The weights of `computed_names`, by name.
            losses: A function per batch, which computes the loss.
        """

    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        """Add parametrizations to a model; its outputs may change. The base class adds nothing.

        Args:
            sites: Layers of the model by the names of their weights.
            names: Names of trainable tensors.
            generator: Draws initial values. Jointly trained models share the generator.
        """


_LEAST = 1e-6
"""Added to the largest importance of a layer before the division, as in the authors' code."""


class LoraAdapter(Adapter):
    """Adds low-rank products to the projections of attention."""

    method: LoraEnsemble

    @override
    def fits(self, site: Site) -> bool:
        return site.place.heads is not None and site.place.heads.role in {TensorRole.INPUT, TensorRole.OUTPUT}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        method = self.method
        for site in [sites[name] for name in self.computed_names(sites, names)]:
            low = LowRank(
                site.layer.weight,
                rank=method.rank,
                scale=method.alpha / method.rank,
                projections=site.place.heads.copies if site.place.heads else 1,
                generator=generator,
            )
            parametrize_weight(site, low)


class SingularValueAdapter(Adapter):
    """Trains singular values and biases of all linear layers of the blocks."""

    method: SingularValues

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts: dict[
            str, tuple[torch.Tensor, ...]
        ] = {}  # a decomposition takes long, and is the same each time

    @override
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, TensorPosition]) -> set[str]:
        return super().changes(parametrized_names, places) | (
            set(map(bias_of, parametrized_names)) & places.keys()
        )

    @override
    @torch.no_grad()
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        def noise(like: torch.Tensor) -> torch.Tensor:
            return self.method.spread * torch.randn(like.shape, generator=generator)

        for name in self.computed_names(sites, names):
            layer = sites[name].layer
            if name not in self.parts:
                self.parts[name] = torch.linalg.svd(layer.weight, full_matrices=False)
            u, s, v = self.parts[name]
            if layer.bias is not None and bias_of(name) in names:
                layer.bias.add_(noise(layer.bias))
            parametrize_weight(sites[name], Spectrum(u, s * (1 + noise(s)), v))


class ObaAdapter(Adapter):
    """Sets single weights of the blocks' linear layers to zero permanently, and trains the remaining weights."""

    method: Oba

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.inspected_batches = self.method.batches
        self.masks: dict[str, torch.Tensor] = {}

    @override
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, TensorPosition]) -> set[str]:
        return set(places)

    @override
    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        masks = masks_of(weights, importances(weights, losses), self.method.keep)
        self.masks = {name: mask.cpu() for name, mask in masks.items()}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.computed_names(sites, names):
            parametrize_weight(sites[name], Masked(self.masks[name]), trains=True)


class BatchEnsembleAdapter(Adapter):
    """Trains members that share matrices; each has two vectors and a bias per linear layer."""

    method: BatchEnsemble

    @override
    def load(
        self, family: Family, header: Header, state: Mapping[str, torch.Tensor], *, place: str
    ) -> TrainableModel:
        """Build members with shared parameters."""
        shared = {
            name: nn.Parameter(tensor) if tensor.is_floating_point() else tensor
            for name, tensor in in_one_dtype(family, state, torch.float32).items()
        }
        members = [
            build_checked(family, header, shared, place=place, dtype=torch.float32)
            for _ in range(self.method.members)
        ]
        states = tuple(member.library_state() for member in members)
        return TrainableModel(module=Jointly(members), states=states, header=header, family=family)

    @override
    def models_of(self, subject: TrainableModel) -> list[nn.Module]:
        return [*cast("Jointly", subject.module).members]

    @override
    def is_own(self, parameter: str) -> bool:
        return parameter.startswith("members.0.") and super().is_own(parameter)

    @override
    def join(self, modules: Sequence[nn.Module]) -> nn.Module:
        return Jointly(modules)

    @override
    def fits(self, site: Site) -> bool:
        return isinstance(site.layer, nn.Linear) and (
            site.place.layer is not None or site.place.part == "head"
        )

    @override
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, TensorPosition]) -> set[str]:
        return set(places)

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.computed_names(sites, names):
            layer = sites[name].layer
            r, s = (
                1 + self.method.spread * torch.randn(size, generator=generator)
                for size in layer.weight.T.shape
            )
            if layer.bias is not None and bias_of(name) in names:
                layer.bias = nn.Parameter(layer.bias.detach().clone())
            parametrize_weight(sites[name], Outer(r, s), trains=True)


class Jointly(nn.Module):
    """Jointly trained models, which may share parameters."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return logits (M, B, C) in training, and log-probabilities (B, C) of the ensemble in evaluation."""
        logits = torch.stack([member(inputs) for member in self.members])
        return logits if self.training else ensemble_log_probs(logits.log_softmax(-1))


def importances(
    weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the second-order importance w_i sum_j H_ij w_j of each weight, summed over batches.

    H is the Hessian of a batch's loss with respect to all given weights.

    Args:
        weights: Weights by name, with gradients enabled.
        losses: A function per batch, which computes the loss.
    """
    curvatures = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    for loss in losses:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention kernels have no second derivative
            slopes = torch.autograd.grad(loss(), [*weights.values()], create_graph=True)
            terms = [(slope * w.detach()).sum() for slope, w in zip(slopes, weights.values(), strict=True)]
            curved = torch.autograd.grad(torch.stack(terms).sum(), [*weights.values()])
        for (name, weight), second in zip(weights.items(), curved, strict=True):
            curvatures[name] += weight.detach() * second
    return curvatures


def masks_of(
    weights: Mapping[str, torch.Tensor], curvatures: Mapping[str, torch.Tensor], keep: float
) -> dict[str, torch.Tensor]:
    """Return masks that keep a share of all weights, by the highest scores.

    The score of a weight is |importance| divided by the maximum of the layer, plus |weight| divided by the
    maximum of all layers.

    Args:
        weights: Weights by name.
        curvatures: Result of `importances`.
        keep: Share of weights to keep, in (0, 1); the number of weights is rounded down.
    """
    largest = max(weight.abs().max() for weight in weights.values())
    scores = {
        name: (importance := curvatures[name].abs()) / (importance.max() + _LEAST)
        + weight.detach().abs() / largest
        for name, weight in weights.items()
    }
    every = torch.cat([score.flatten() for score in scores.values()])
    keep_mask = torch.zeros_like(every, dtype=torch.bool)
    keep_mask[every.topk(int(keep * len(every))).indices] = True
    parts = keep_mask.split([score.numel() for score in scores.values()])
    return {name: part.view(scores[name].shape) for name, part in zip(scores, parts, strict=True)}


class LowRank(nn.Module):
    """W + scale B A, for each of P concatenated projections (Hu et al. 2022, section 4.1)."""

    def __init__(
        self, weight: torch.Tensor, *, rank: int, scale: float, projections: int, generator: torch.Generator
    ) -> None:
        """Draw A uniformly within ±1 / sqrt(D), like peft. B is zero, so the outputs do not change at first.

        Args:
            weight: W, (O, D).
            rank: R.
            scale: Factor of the product.
            projections: P, a divisor of O.
            generator: Draws A.
        """
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = scale
        # the suffix `_weight` makes weight decay apply, as for other weights
        uniform = torch.rand(projections, rank, inputs, generator=generator)
        self.a_weight = nn.Parameter((2 * uniform - 1) / math.sqrt(inputs))
        self.b_weight = nn.Parameter(torch.zeros(projections, outputs // projections, rank))

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight + self.scale * (self.b_weight @ self.a_weight).flatten(0, 1)


class Spectrum(nn.Module):
    """U S V with fixed U and V, and trainable S clamped at zero."""

    def __init__(self, u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> None:
        """Store a decomposition.

        Args:
            u: Shape (O, R).
            s: Trainable singular values, (R,).
            v: Shape (R, D).
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
    """A weight with masked entries."""

    def __init__(self, keep_mask: torch.Tensor) -> None:
        """Store the mask (O, D), True for weights that are kept."""
        super().__init__()
        self.register_buffer("kept", keep_mask, persistent=False)

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight * cast("torch.Tensor", self.kept)


class Outer(nn.Module):
    """W o (s r'), a vector per side (Wen et al. 2020, equation 1); the layer computes W (r o x) o s."""

    def __init__(self, r: torch.Tensor, s: torch.Tensor) -> None:
        """Initialize the vectors of a member.

        Args:
            r: Factors of the inputs, (D,).
            s: Factors of the outputs, (O,).
        """
        super().__init__()
        self.r, self.s = nn.Parameter(r), nn.Parameter(s)

    @override
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight (O, D)."""
        return weight * self.s[:, None] * self.r
