"""Distances and principal components of head outputs (Hydra Ensembles, B.2, Table 5 and Figure 4).

Axes: N samples, B batch, H heads, T tokens, K head width, D output width of a group (heads times K).
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
from hydractl.families.attention import NO_EXTRAS, Attention, AttentionExtras
from hydractl.families.stream import Stream
from hydractl.families.tower import Towers
from hydractl.heads.masks import removal_order
from hydractl.manifest.head_mask import HeadId, HeadImportance, HeadName
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.feature_scores import whitening
from hydractl.model_inputs import Inputs, batch_of, repeat_batch
from hydractl.research.analyses.context import AnalysisContext, ModelOfRow
from hydractl.research.schema import CentroidDistances, Centroids, Plane, Planes
from hydractl.scoring.attention_hooks import tapped


class HeadOutputTap(Attention):
    """Attention that passes head outputs, before the output projection, to a function."""

    def __init__(self, attention: Attention, hear: Callable[[Tensor], None]) -> None:
        """Wrap an attention module.

        Args:
            attention: Module to wrap.
            hear: Receives the result of `Attention.heads` in each pass, with members in turn.
        """
        super().__init__(attention.groups())
        self._hear = hear

    @override
    def heads(self, x: Tensor, queries: slice | None = None, side: AttentionExtras = NO_EXTRAS) -> Tensor:
        z = super().heads(x, queries, side)
        self._hear(z)
        return z


class HeadGroup(NamedTuple):
    """Heads of a member whose outputs are concatenated.

    Attributes:
        member: Index of the member in the model.
        heads: Heads, in the order of their outputs.
    """

    member: int
    heads: tuple[HeadName, ...]


class OutputMoments(NamedTuple):
    """Sums over samples of a group's outputs, float64.

    Attributes:
        number: Number of samples, ().
        total: Sum of the outputs, (D,).
        products: Sum of the outer products of the outputs, (D, D).
        points: Outputs of P selected samples, (P, D).
    """

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
        """The covariance (D, D) with N - 1 degrees of freedom; zero for a single sample."""
        about = self.products - self.number * torch.outer(self.mean, self.mean)
        return about / (self.number - 1).clamp(min=1)

    @property
    def size(self) -> float:
        """The mean squared norm of the outputs."""
        return float(self.products.trace() / self.number)

    def on(self, origin: Tensor, axes: Tensor) -> OutputMoments:
        """Project the moments on axes.

        Args:
            origin: Subtracted from the outputs first, (D,).
            axes: Orthonormal columns, (D, D').

        Returns:
            Moments of the coordinates along the axes.
        """
        shift = self.products - torch.outer(self.total, origin) - torch.outer(origin, self.total)
        about = shift + self.number * torch.outer(origin, origin)
        total = (self.total - self.number * origin) @ axes
        return OutputMoments(self.number, total, axes.T @ about @ axes, (self.points - origin) @ axes)

    def distance(self, other_moments: OutputMoments) -> tuple[float, float]:
        """Return the Euclidean and the Mahalanobis distance to another centroid.

        The Mahalanobis distance uses the pseudoinverse of this covariance.
        """
        offset = other_moments.mean - self.mean
        return float(offset.norm()), float((offset @ whitening(self.covariance, self.size)).norm())


def data_tower(model: Towers) -> str:
    """Return the name of the tower that samples pass through; for zero-shot models the vision tower."""
    return "vision" if "vision" in model.towers else next(iter(model.towers))


def gather(
    context: AnalysisContext, part: ModelOfRow, name: str, groups: Sequence[HeadGroup], *, points: int
) -> list[OutputMoments]:
    """Run a model on a data set and sum the outputs of each group; a collective call of all ranks.

    Args:
        context: The row.
        part: Model of the row.
        name: Name of the data set.
        groups: Groups of heads.
        points: Largest number of evenly spaced samples in `OutputMoments.points`.

    Returns:
        Moments in the order of `groups`.
    """
    count = context.count(name)
    places = (torch.arange(min(points, count)) * count).div(min(points, count) or 1, rounding_mode="floor")

    def batch_sums() -> Iterator[list[Tensor]]:
        for indices, inputs in context.inputs(part, name):
            at, rows = (places[:, None] == indices).nonzero().unbind(1)
            sums: list[Tensor] = []
            for batch_outputs in group_outputs(part.model, inputs, groups):
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


def group_outputs(model: Towers, inputs: Inputs, groups: Sequence[HeadGroup]) -> list[Tensor]:
    """Return the outputs of each group on a batch, averaged over the tokens that the model's output reads.

    Args:
        model: The model.
        inputs: One batch.
        groups: Groups of remaining heads.

    Returns:
        One tensor (B, D) per group, float64, on the CPU.
    """
    name = data_tower(model)
    tower = model.tower(name)
    tower_inputs = model.routed(inputs)[name]
    size = batch_of(tower_inputs)
    layers = {head.layer for group in groups for head in group.heads}
    outputs: dict[tuple[int, int, int], Tensor] = {}
    padding: list[Tensor | None] = []

    # The padding mask comes from the embedding's context, because a layer's own mask may also hide tokens
    # outside an attention window.
    def enter(_: nn.Module, __: object, stream: Stream) -> None:
        padding.append(stream.context.get("mask") if tower.read_tokens is None else None)

    def hear(layer: int, attention: Attention, z: Tensor) -> None:
        member_heads = [group.head_numbers for group in attention.groups()]
        read = z if tower.queries(layer) is not None else z[:, tower.read_tokens or slice(None)]
        pooled = _mean(read, *padding).double().cpu()
        # members share the heads of this layer, but their inputs already differ
        separate = len(pooled) > size
        for member in range(tower.members):
            member_output, begin = pooled, 0
            if len(member_heads) > 1:
                begin = sum(map(len, member_heads[:member]))
            elif separate:
                member_output = pooled.split(size)[member]
            for place, head in enumerate(member_heads[member if len(member_heads) > 1 else 0]):
                outputs[member, layer, head] = member_output[:, begin + place]

    def tap(_: str, layer: int, attention: Attention) -> Attention:
        return HeadOutputTap(attention, partial(hear, layer, attention)) if layer in layers else attention

    with torch.inference_mode(), tapped(model, [name], tap), tower.embed.register_forward_hook(enter):
        model.run_tower(name, tower_inputs)
    return [torch.cat([outputs[g.member, h.layer, h.head] for h in g.heads], 1) for g in groups]


def _mean(z: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over tokens (N, H, K) of z (N, T, H, K), without the tokens that a mask hides.

    The mask (B or M B, 1, 1, T) is True at visible tokens. N is B or M B.
    """
    if mask is None:
        return z.mean(1)
    # All members have the same padding. Rows of the mask are repeated if the members' streams separate only
    # after the mask was made.
    unmasked = repeat_batch(mask, -(-len(z) // len(mask)))[: len(z), 0, 0, :, None, None].to(z.dtype)
    return (z * unmasked).sum(1) / unmasked.sum(1)


def gather_sets(
    context: AnalysisContext, part: ModelOfRow, groups: Sequence[HeadGroup], *, points: int = 0
) -> Mapping[str, list[OutputMoments]]:
    """Return `gather` for the ID set and each OOD set, by name."""
    return {name: gather(context, part, name, groups, points=points) for name in (ID_NAME, *context.sets)}


def analyse_centroids(context: AnalysisContext) -> Centroids | None:
    """Measure distances of OOD from ID centroids in the last layer (Hydra Ensembles, B.2, Table 5).

    The centroid c of a head is the mean of its output at the class token; models without a class token
    average over tokens. The distances are |c_ID - c_OOD| and sqrt((c_ID - c_OOD) S^-1 (c_ID - c_OOD)^T), with
    the covariance S of the ID outputs (N - 1 degrees of freedom; pseudoinverse). With few samples, distances
    grow by chance.

    Returns:
        None if no member keeps heads in the last layer, or if the row has a baseline.
    """
    heads: list[CentroidDistances] = []
    for part in context.parts:
        tower = data_tower(part.model)
        groups = [
            HeadGroup(member, (HeadName(tower=tower, layer=mask[tower].layers - 1, head=head),))
            for member, mask in enumerate(part.model_file.header.masks)
            for head in mask[tower].keep[-1]
        ]
        sums = gather_sets(context, part, groups)
        width = part.model_file.header.architecture.towers[tower].head_dim
        if groups and context.count(ID_NAME) <= width:
            progress.warn(
                f"{part.model_file.reference}: {context.count(ID_NAME)} ID samples are too few for the {width} "
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


HEADS_PER_SIDE = 6
"""Heads on each side, as in Figure 4 of Hydra Ensembles. Doubling compares heads with more similar
importance."""
POINTS = 200
"""Points of a data set in a plane. Chosen by hand: enough for a scatter plot. Doubling doubles the stored
points, and reaches `MOST_DRAWN`, the limit of a report."""


def analyse_pca(context: AnalysisContext) -> tuple[Planes, ...]:
    """Measure principal components of the most and least important heads (Hydra Ensembles, B.2, Figure 4).

    A member's remaining heads are ranked by each file of `--scores`. There are `HEADS_PER_SIDE` on each side, or half
    of the member's heads if fewer are kept. Components are fitted on the ID set and all OOD sets together,
    each sample with equal weight.

    Returns:
        One entry per file and member with at least two heads.
    """
    all_planes: list[Planes] = []
    for part in context.parts:
        labelled_ends = [
            (label, member, ends) for label in context.scores for member, ends in _ends(part, context, label)
        ]
        groups = [HeadGroup(member, heads) for _, member, ends in labelled_ends for heads in ends]
        if not groups:
            continue
        moments = gather_sets(context, part, groups, points=POINTS)
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
    """Yield each member with at least two heads, and the most and least important heads by a file."""
    tower = data_tower(part.model)
    order = ranked(context.scores[label], tower)
    for member, mask in enumerate(part.model_file.header.masks):
        remaining = [head for head in order if head.head in mask[tower].keep[head.layer]]
        count = min(HEADS_PER_SIDE, len(remaining) // 2)
        if count:
            names = [HeadName(tower=head.tower, layer=head.layer, head=head.head) for head in remaining]
            yield member, (tuple(names[: -count - 1 : -1]), tuple(names[:count]))


def ranked(importance: HeadImportance, tower: str) -> list[HeadId]:
    """Return a tower's heads from the least to the most important.

    Heads of a greedy order come first, in the order of removal. The remaining heads follow by ascending
    importance.
    """
    tables = importance.tables
    removed = [removal.id for removal in importance.removals or ()]
    ordered = [head for head in removal_order(tables) if head not in {*removed}]
    return [head for head in (*removed, *ordered) if head.tower == tower]


def plane(heads: Sequence[HeadName], moments: Mapping[str, OutputMoments]) -> Plane:
    """Return the first two principal components of all data sets together, and the projections of each set.

    The sign of a component makes its largest entry positive (the first of equal entries). If the outputs vary
    in one direction only, the second component has no variance.
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
            name: tuple((_rounded(x), _rounded(y)) for x, y in set_moments.points)
            for name, set_moments in flat.items()
        },
        mahalanobis={
            name: flat[ID_NAME].distance(set_moments)[1]
            for name, set_moments in flat.items()
            if name != ID_NAME
        },
    )


def _rounded(value: torch.Tensor) -> float:
    """Round a coordinate to four digits, more than a figure shows."""
    return float(f"{float(value):.4g}")
