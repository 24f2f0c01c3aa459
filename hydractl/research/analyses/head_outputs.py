"""What heads say of data sets: sums of it, gathered while the model answers, and some samples of it.

A head's output is what it gives to the output projection, at the tokens that the classifier reads (the class token); where it reads
all, their mean, of texts without padding.

Axes: B samples of a batch, N of a data set, M members, T tokens, H heads, K head width, D = K times the heads of a group, P points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydractl.families.attention import Attention
from hydractl.families.stream import Stream
from hydractl.families.tower import Towers
from hydractl.manifest.head_mask import HeadName
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.feature_scores import whitening
from hydractl.model_inputs import Inputs, batch_of, repeat_batch
from hydractl.scoring.attention_hooks import Heard, tapped
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow


class Group(NamedTuple):
    """Heads of one member of a model whose outputs lie side by side."""

    member: int
    heads: tuple[HeadName, ...]


class OutputMoments(NamedTuple):
    """Sums over samples, float64: how many, of what is said (D,), of its products (D, D); and what some say, (P, D)."""

    number: Tensor
    total: Tensor
    products: Tensor
    points: Tensor

    @property
    def mean(self) -> Tensor:
        """The centroid (D,)."""
        return self.total / self.number

    @property
    def covariance(self) -> Tensor:
        """About the centroid, (D, D), of N - 1 degrees of freedom; of one sample, of nothing."""
        about = self.products - self.number * torch.outer(self.mean, self.mean)
        return about / (self.number - 1).clamp(min=1)

    @property
    def size(self) -> float:
        """The mean squared length."""
        return float(self.products.trace() / self.number)

    def on(self, origin: Tensor, axes: Tensor) -> OutputMoments:
        """Return those of what lies along some axes (D, D'), from an origin (D,) on."""
        shift = self.products - torch.outer(self.total, origin) - torch.outer(origin, self.total)
        about = shift + self.number * torch.outer(origin, origin)
        total = (self.total - self.number * origin) @ axes
        return OutputMoments(self.number, total, axes.T @ about @ axes, (self.points - origin) @ axes)

    def distance(self, other_moments: OutputMoments) -> tuple[float, float]:
        """Return how far the other centroid is: Euclidean, and Mahalanobis by this covariance (its pseudoinverse)."""
        offset = other_moments.mean - self.mean
        return float(offset.norm()), float((offset @ whitening(self.covariance, self.size)).norm())


def data_tower(model: Towers) -> str:
    """Return the tower that samples go through: of a zero-shot model, which is asked about classes that it knows, the images'."""
    return "vision" if "vision" in model.towers else next(iter(model.towers))


def gather(
    context: AnalysisContext, part: ModelOfRow, name: str, groups: Sequence[Group], *, points: int
) -> list[OutputMoments]:
    """Run a model once on a data set, and return the moments of each group with so many samples at most, evenly spread."""
    count = context.counts[name]
    places = (torch.arange(min(points, count)) * count).div(min(points, count) or 1, rounding_mode="floor")

    def batch_sums() -> Iterator[list[Tensor]]:
        for indices, inputs in context.inputs(part, name):
            at, rows = (places[:, None] == indices).nonzero().unbind(1)
            sums: list[Tensor] = []
            for batch_outputs in heard(part.model, inputs, groups):
                picked = batch_outputs.new_zeros(len(places), batch_outputs.shape[1])
                picked[at] = batch_outputs[rows]
                sums += OutputMoments(
                    torch.tensor(float(len(batch_outputs))).double(),
                    batch_outputs.sum(0),
                    batch_outputs.T @ batch_outputs,
                    picked,
                )
            yield sums

    sums = context.team.added(batch_sums())
    width = len(OutputMoments._fields)
    return [OutputMoments(*sums[i : i + width]) for i in range(0, len(sums), width)]


def heard(model: Towers, inputs: Inputs, groups: Sequence[Group]) -> list[Tensor]:
    """Return what each group says of a batch, (B, D), float64, on the CPU."""
    name = data_tower(model)
    tower = model.tower(name)
    tower_inputs = model.routed(inputs)[name]
    size = batch_of(tower_inputs)
    layers = {head.layer for group in groups for head in group.heads}
    outputs: dict[tuple[int, int, int], Tensor] = {}
    padding: list[Tensor | None] = []

    # once for all layers, whose own masks may be those of windows
    def enter(_: nn.Module, __: object, stream: Stream) -> None:
        padding.append(stream.context.get("mask") if tower.reads is None else None)

    def hear(layer: int, attention: Attention, z: Tensor) -> None:
        member_heads = [group.head_numbers for group in attention.groups()]
        read = z if tower.queries(layer) is not None else z[:, tower.reads or slice(None)]
        pooled = _mean(read, *padding).double().cpu()
        separate = len(pooled) > size  # members that share the heads, but no more what they look at
        for member in range(tower.members):
            member_output, begin = pooled, 0
            if len(member_heads) > 1:
                begin = sum(map(len, member_heads[:member]))
            elif separate:
                member_output = pooled.split(size)[member]
            for place, head in enumerate(member_heads[member if len(member_heads) > 1 else 0]):
                outputs[member, layer, head] = member_output[:, begin + place]

    def tap(_: str, layer: int, attention: Attention) -> Attention:
        return Heard(attention, partial(hear, layer, attention)) if layer in layers else attention

    with torch.inference_mode(), tapped(model, [name], tap), tower.embed.register_forward_hook(enter):
        model.run_tower(name, tower_inputs)
    return [torch.cat([outputs[g.member, h.layer, h.head] for h in g.heads], 1) for g in groups]


def _mean(z: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of z (N, T, H, K) over tokens, (N, H, K), without those that a padding mask (B or M B, 1, 1, T) hides."""
    if mask is None:
        return z.mean(1)
    # members see the same, whether they have parted where the mask is made, or only later
    unmasked = repeat_batch(mask, -(-len(z) // len(mask)))[: len(z), 0, 0, :, None, None].to(z.dtype)
    return (z * unmasked).sum(1) / unmasked.sum(1)


def in_every_set(
    context: AnalysisContext, part: ModelOfRow, groups: Sequence[Group], *, points: int = 0
) -> Mapping[str, list[OutputMoments]]:
    """Return `gather` of the ID set and of each OOD set."""
    return {name: gather(context, part, name, groups, points=points) for name in (ID_NAME, *context.sets)}
