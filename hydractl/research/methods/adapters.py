"""What each method makes weights of, and which tensors of a model it changes.

Optimal Brain Apoptosis (Sun et al. 2025) finds which single weights a loss can do without, by exact second derivatives: the
unstructured form of the authors' `FastOBAPruner` of order 2, in one step.

What makes weights is a parametrization of torch. Axes: O outputs, D inputs, P projections in one matrix, R rank.
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
from hydractl.families.base import Family, Place, place_of
from hydractl.families.head_slicing import TensorRole
from hydractl.families.open_model import build_checked, in_one_dtype
from hydractl.manifest.header import Header
from hydractl.messages import counted
from hydractl.metrics.per_sample import ensemble_log_probs, question_losses
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

    options: TrainingOptions

    @override
    def open_feed(
        self, feed: ItemFeed, load: Callable[[], TrainableModel], names: Collection[str], engine: Engine
    ) -> Feed:
        return self.seeded(feed)

    def seeded(self, feed: ItemFeed) -> ItemFeed:
        """Return the batches with the seed of the order."""
        seed = self.options.order_seed
        return feed if seed is None else replace(feed, seed=seed)

    @override
    def change_job(self, job: Job) -> Job:
        if (seed := self.options.dropout_seed) is None:
            return job
        return replace(job, seed=seed, repulsion=job.repulsion and replace(job.repulsion, seed=seed))


class Adapter(SeededTraining):
    """Training by a method that computes weights from other tensors. A run has one adapter and builds the model several times."""

    trains_all = False
    inspected_batches = 0
    """Number of batches that the method inspects before training."""

    method: TrainingMethod

    @override
    def __post_init__(self) -> None:
        self.members = len(self.header.masks)
        self.method = cast("TrainingMethod", self.options.trains_by)

    def check_model(self) -> None:
        """Refuse a hydra by default, because it has several weights in the place of one."""
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
        return tuple(
            sorted(self.changes(parametrized_names, {name: place_of(family, name) for name in names}))
        )

    @override
    def build(self, subject: TrainableModel, names: Collection[str]) -> TrainableModel:
        models = self.models_of(subject)
        # members of a hydra share their names, so the first state suffices
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
        """Return the models that train together; by default the model itself."""
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
        """Return the batches of training, derived from the batches of the data."""
        return feed

    def _inspect(
        self, feed: ItemFeed, subject: TrainableModel, names: Collection[str], engine: Engine
    ) -> None:
        """Pass batches to `look`. Each process passes all of them, so that all get the same result."""
        sites = sites_of(subject.family, subject.module, subject.states[0])
        model, device = subject.module.to(engine.device).eval(), engine.device
        count = min(self.inspected_batches, feed.steps_per_epoch)
        accumulate = self.recipe.accumulate
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


_LEAST = 1e-6
"""Added to the largest importance of a layer before it divides, as there."""


class LoraAdapter(Adapter):
    """Adds a product of low rank to the projections of attention."""

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
            make(site, low)


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
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, Place]) -> set[str]:
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
            make(sites[name], Spectrum(u, s * (1 + noise(s)), v))


class ObaAdapter(Adapter):
    """Sets single weights of the blocks' linear layers to zero for good, and trains everything."""

    method: Oba

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.inspected_batches = self.method.batches
        self.masks: dict[str, torch.Tensor] = {}

    @override
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, Place]) -> set[str]:
        return set(places)

    @override
    def look(self, weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]) -> None:
        masks = masks_of(weights, importances(weights, losses), self.method.keep)
        self.masks = {name: mask.cpu() for name, mask in masks.items()}

    @override
    def attach(self, sites: Mapping[str, Site], names: Collection[str], generator: torch.Generator) -> None:
        for name in self.computed_names(sites, names):
            make(sites[name], Masked(self.masks[name]), trains=True)


class BatchEnsembleAdapter(Adapter):
    """Members that share matrices, and have two vectors and a bias each of every linear layer, the classifier's too."""

    method: BatchEnsemble

    @override
    def load(
        self, family: Family, header: Header, state: Mapping[str, torch.Tensor], *, where: str
    ) -> TrainableModel:
        """Build the members, which share all parameters."""
        shared = {
            name: nn.Parameter(tensor) if tensor.is_floating_point() else tensor
            for name, tensor in in_one_dtype(family, state, torch.float32).items()
        }
        members = [
            build_checked(family, header, shared, where=where, dtype=torch.float32)
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
    def changes(self, parametrized_names: Collection[str], places: Mapping[str, Place]) -> set[str]:
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
            make(sites[name], Outer(r, s), trains=True)


class Jointly(nn.Module):
    """Models that train together and may hold some parameters in common."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @override
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return what `Together` does."""
        logits = torch.stack([member(inputs) for member in self.members])
        return logits if self.training else ensemble_log_probs(logits.log_softmax(-1))


def importances(
    weights: Mapping[str, torch.Tensor], losses: Iterable[Callable[[], torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the sum over losses of w_i sum_j H_ij w_j for each weight, H the loss's Hessian over all of these weights.

    Args:
        weights: Of layers, by name; they require gradients.
        losses: Each computes one.
    """
    curvatures = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()}
    for loss in losses:
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that can be differentiated twice
            slopes = torch.autograd.grad(loss(), [*weights.values()], create_graph=True)
            terms = [(slope * w.detach()).sum() for slope, w in zip(slopes, weights.values(), strict=True)]
            curved = torch.autograd.grad(torch.stack(terms).sum(), [*weights.values()])
        for (name, weight), second in zip(weights.items(), curved, strict=True):
            curvatures[name] += weight.detach() * second
    return curvatures


def masks_of(
    weights: Mapping[str, torch.Tensor], curvatures: Mapping[str, torch.Tensor], keep: float
) -> dict[str, torch.Tensor]:
    """Return which weights stay: of all together, the share with the highest scores.

    A weight's score is its importance without its sign, over the largest one of its layer, plus its own size over the largest
    weight's.

    Args:
        weights: By name.
        curvatures: What `importances` returns.
        keep: The share, of which the number of weights is the whole part.
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
