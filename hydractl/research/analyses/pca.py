"""What the most and the least important heads say, in two dimensions (Hydra Ensembles, B.2, Figure 4).

Axes: D what several heads say side by side, P points of a data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from hydractl.heads.masks import removal_order
from hydractl.manifest.analyses import Plane, Planes
from hydractl.manifest.head_mask import HeadId, HeadName, HeadScores
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.research.analyses.head_outputs import Group, OutputMoments, data_tower, in_every_set
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow

HEADS = 6
"""The paper's."""
POINTS = 200
"""Of each data set, which say enough to the eye."""


def analyse(context: AnalysisContext) -> tuple[Planes, ...]:
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
