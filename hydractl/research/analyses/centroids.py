"""How far what heads of the last layer say of OOD data is from what they say of ID data (Hydra Ensembles, B.2, Table 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hydractl.manifest.analyses import CentroidDistances, Centroids
from hydractl.manifest.head_mask import HeadName
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.research.analyses.head_outputs import Group, data_tower, in_every_set
from hydractl.stages.evaluate.analyses.context import AnalysisContext


def analyse(context: AnalysisContext) -> Centroids | None:
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
        if groups and context.counts[ID_NAME] <= width:
            context.progress.warn(
                f"{part.opened.reference}: {context.counts[ID_NAME]} ID samples are too few for the {width} "
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
        euclidean=_means(heads, context.sets, lambda head: head.euclidean),
        mahalanobis=_means(heads, context.sets, lambda head: head.mahalanobis),
    )


def _means(
    heads: Sequence[CentroidDistances],
    sets: Sequence[str],
    of: Callable[[CentroidDistances], dict[str, float]],
) -> dict[str, float]:
    return {name: math.fsum(of(head)[name] for head in heads) / len(heads) for name in sets}
