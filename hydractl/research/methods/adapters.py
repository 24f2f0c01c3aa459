"""What each method makes weights of, and which tensors of a model it changes.

Optimal Brain Apoptosis (Sun et al. 2025) finds which single weights a loss can do without, by exact second derivatives: the
unstructured form of the authors' `FastOBAPruner` of order 2, in one step.

What makes weights is a parametrization of torch. Axes: O outputs, D inputs, P projections in one matrix, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import override

from hydractl.families.base import Family, Place
from hydractl.families.layout import TensorRole
from hydractl.families.load import build_checked, in_one_dtype
from hydractl.manifest.header import Header
from hydractl.metrics.per_sample import ensemble_log_probs
from hydractl.model_inputs import Inputs
from hydractl.research.methods.adapter import Adapter, Site, bias_of, make
from hydractl.research.methods.options import BatchEnsemble, LoraEnsemble, Oba, SingularValues
from hydractl.stages.finetune.config import FinetuneConfig
from hydractl.stages.finetune.trainable import TrainableModel

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

    def __init__(self, config: FinetuneConfig, header: Header) -> None:
        super().__init__(config, header)
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

    def __init__(self, config: FinetuneConfig, header: Header) -> None:
        super().__init__(config, header)
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
