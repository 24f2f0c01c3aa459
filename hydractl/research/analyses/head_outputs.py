"""Outputs of heads: distances between centroids and principal components (Hydra Ensembles, B.2, Table 5 and Figure 4).

Axes: N samples, B batch, H heads, T tokens, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from hydractl import progress
from hydractl.families.attention import NOTHING, Attention, AttentionExtras
from hydractl.families.stream import Stream
from hydractl.families.tower import Towers
from hydractl.heads.masks import removal_order
from hydractl.manifest.head_mask import HeadId, HeadName, HeadScores
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.feature_scores import whitening
from hydractl.model_inputs import Inputs, batch_of, repeat_batch
from hydractl.research.analyses.context import AnalysisContext, ModelOfRow
from hydractl.research.schema import CentroidDistances, Centroids, Plane, Planes
from hydractl.scoring.attention_hooks import tapped


class Heard(Attention):
    """Attention that passes its head outputs, before the output projection, to a function in each pass."""

    def __init__(self, attention: Attention, hear: Callable[[Tensor], None]) -> None:
        """Take the place of an attention, of one member or of several.

        Args:
            attention: Module to wrap.
            hear: Receives the outputs, as `Attention.heads` returns them in turn.
        """
        super().__init__(attention.groups())
        self._hear = hear

    @override
    def heads(self, x: Tensor, queries: slice | None = None, side: AttentionExtras = NOTHING) -> Tensor:
        z = super().heads(x, queries, side)
        self._hear(z)
        return z


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
    count = context.count(name)
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

    sums = context.run.team.added(batch_sums())
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


def analyse_centroids(context: AnalysisContext) -> Centroids | None:
    """Return the distances between centroids of every head that members keep in the last layer.

    With c the mean over samples of a head's output at the class token, they are |c_ID - c_OOD| and the root of
    (c_ID - c_OOD) S^-1 (c_ID - c_OOD)^T, S the covariance of the ID outputs (N - 1 degrees of freedom, its pseudoinverse). Few
    samples move centroids apart by chance.
    """
    heads: list[CentroidDistances] = []
    for part in context.parts:
        tower = data_tower(part.model)
        groups = [
            Group(member, (HeadName(tower=tower, layer=mask[tower].layers - 1, head=head),))
            for member, mask in enumerate(part.opened.header.masks)
            for head in mask[tower].keep[-1]
        ]
        sums = in_every_set(context, part, groups)
        width = part.opened.header.architecture.towers[tower].head_dim
        if groups and context.count(ID_NAME) <= width:
            progress.warn(
                f"{part.opened.reference}: {context.count(ID_NAME)} ID samples are too few for the {width} "
                "dimensions of a head, so directions in which they do not vary are ignored"
            )
        for i, (member, (head,)) in enumerate(groups):
            far = {name: sums[ID_NAME][i].distance(sums[name][i]) for name in context.sets}
            heads.append(
                CentroidDistances(
                    member=part.first + member,
                    head=head,
                    euclidean={name: euclidean for name, (euclidean, _) in far.items()},
                    mahalanobis={name: mahalanobis for name, (_, mahalanobis) in far.items()},
                )
            )
    if not heads:
        return None
    return Centroids(
        heads=tuple(heads),
        euclidean=_distance_means(heads, context.sets, lambda head: head.euclidean),
        mahalanobis=_distance_means(heads, context.sets, lambda head: head.mahalanobis),
    )


def _distance_means(
    heads: Sequence[CentroidDistances],
    sets: Sequence[str],
    of: Callable[[CentroidDistances], dict[str, float]],
) -> dict[str, float]:
    return {name: math.fsum(of(head)[name] for head in heads) / len(heads) for name in sets}


HEADS = 6
"""The paper's."""
POINTS = 200
"""Of each data set, which say enough to the eye."""


def analyse_pca(context: AnalysisContext) -> tuple[Planes, ...]:
    """Return the principal components of what the six most and least important heads say, of those that each member keeps.

    Heads that were removed first matter least. The components are of the ID set and all OOD sets together, each sample once;
    where a member keeps fewer than twelve heads, it has half of them.
    """
    all_planes: list[Planes] = []
    for part in context.parts:
        labelled_ends = [
            (label, member, ends) for label in context.scores for member, ends in _ends(part, context, label)
        ]
        groups = [Group(member, heads) for _, member, ends in labelled_ends for heads in ends]
        if not groups:
            continue
        moments = in_every_set(context, part, groups, points=POINTS)
        planes = [
            plane(group.heads, {name: set_moments[i] for name, set_moments in moments.items()})
            for i, group in enumerate(groups)
        ]
        for i, (label, member, _) in enumerate(labelled_ends):
            most, least = planes[2 * i : 2 * i + 2]
            all_planes.append(Planes(member=part.first + member, scores=label, most=most, least=least))
    return tuple(all_planes)


def _ends(
    part: ModelOfRow, context: AnalysisContext, label: str
) -> Iterator[tuple[int, tuple[tuple[HeadName, ...], tuple[HeadName, ...]]]]:
    """Yield each member with the most and the least important heads that it keeps, by scores of one name."""
    tower = data_tower(part.model)
    order = ranked(context.scores[label], tower)
    for member, mask in enumerate(part.opened.header.masks):
        remaining = [head for head in order if head.head in mask[tower].keep[head.layer]]
        count = min(HEADS, len(remaining) // 2)
        if count:
            names = [HeadName(tower=head.tower, layer=head.layer, head=head.head) for head in remaining]
            yield member, (tuple(names[: -count - 1 : -1]), tuple(names[:count]))


def ranked(scores: HeadScores, tower: str) -> list[HeadId]:
    """Return a tower's heads in the order in which they go, those that scores do not remove last, by score."""
    tables = scores.tables
    removed = [removal.id for removal in scores.removals or ()]
    ordered = [head for head in removal_order(tables) if head not in {*removed}]
    return [head for head in (*removed, *ordered) if head.tower == tower]


def plane(heads: Sequence[HeadName], moments: Mapping[str, OutputMoments]) -> Plane:
    """Return the two directions of the greatest variance of all data sets together, and what lies in them.

    A direction's largest number is positive, the first of equal ones; where there is but one direction, the second is nothing.
    """
    sums = [
        torch.stack(set_sums).sum(0)
        for set_sums in zip(*(set_moments[:3] for set_moments in moments.values()), strict=True)
    ]
    every = OutputMoments(sums[0], sums[1], sums[2], torch.empty(0))
    values, vectors = torch.linalg.eigh(every.covariance)
    axes = vectors.flip(1)[:, :2]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    values = values.flip(0).clamp(min=0)
    share = (values / values.sum().clamp(min=torch.finfo(values.dtype).tiny))[:2]
    flat = {name: set_moments.on(every.mean, axes) for name, set_moments in moments.items()}
    return Plane(
        heads=tuple(heads),
        variance=(float(share[0]), float(share[1])),
        points={
            name: tuple((_short(x), _short(y)) for x, y in set_moments.points)
            for name, set_moments in flat.items()
        },
        mahalanobis={
            name: flat[ID_NAME].distance(set_moments)[1]
            for name, set_moments in flat.items()
            if name != ID_NAME
        },
    )


def _short(value: torch.Tensor) -> float:
    """Return a coordinate as closely as it can be seen."""
    return float(f"{float(value):.4g}")
