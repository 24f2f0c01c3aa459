"""Members out of groups of alike heads: each keeps one head of every group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.heads.masks import all_heads, check_order, drop_heads, full_mask
from hydractl.heads.members import share_before
from hydractl.heads.select import shape_of_scores
from hydractl.manifest.heads import HeadId, TowerKeep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydractl.manifest.heads import Mask, Shape, Tables


def cluster_masks(
    clusters: Sequence[Sequence[HeadId]],
    scores: Tables,
    *,
    members: int,
    diverge_from: int = 0,
) -> tuple[dict[str, TowerKeep], ...]:
    """Let member j keep the j-th best head of each cluster: members that complement each other by construction.

    A cluster with fewer heads gives its best one again. Before layer `diverge_from` every member keeps what member 0
    keeps there, so that a cluster may be left without a head or with two. Then a layer without heads gets its
    highest-scored one back, of equal scores the lowest (CAHP, the step after choosing representatives); so members may
    keep different numbers of heads.

    Args:
        clusters: Each one's heads, best first; no head twice.
        scores: For each tower L x H scores, which the guard of empty layers goes by.
        members: How many masks, at least 1.
        diverge_from: Members agree in all layers before this one, at least 0.

    Returns:
        One mask a member, all different, of the towers that have scores.

    Raises:
        ValueError: If a cluster is empty or has a head that the scores lack or that comes twice, or two members keep
            the same heads.
    """
    shape = shape_of_scores(scores)
    check_order([head for cluster in clusters for head in cluster], shape)
    if not all(clusters):
        raise ValueError("a cluster has no head")
    chosen = [representatives(clusters, member, shape) for member in range(members)]
    masks = tuple(keep_every_layer(mask, scores) for mask in share_before(chosen, diverge_from))
    for member, mask in enumerate(masks):
        if mask in masks[:member]:
            raise ValueError(
                f"members {masks.index(mask)} and {member} would keep the same heads: the largest of "
                f"{len(clusters)} clusters has {max(map(len, clusters))} heads"
            )
    return masks


def representatives(clusters: Sequence[Sequence[HeadId]], member: int, shape: Shape) -> dict[str, TowerKeep]:
    """Return the mask of one head a cluster: its `member`-th best, or its best where it has fewer.

    Args:
        clusters: Each one's heads, best first.
        member: Counted from 0.
        shape: The model's shape.
    """
    heads = {cluster[member] if member < len(cluster) else cluster[0] for cluster in clusters}
    return drop_heads(full_mask(shape), set(all_heads(shape)) - heads)


def keep_every_layer(mask: Mask, scores: Tables) -> dict[str, TowerKeep]:
    """Give each layer without heads its highest-scored one back; of equal scores the lowest.

    Args:
        mask: Unchanged.
        scores: L x H for each tower of the mask, finite.
    """
    return {
        tower: TowerKeep(
            num_heads=part.num_heads,
            keep=tuple(
                kept or (max(range(part.num_heads), key=lambda h, row=row: (row[h], -h)),)  # type: ignore[misc]
                for kept, row in zip(part.keep, scores[tower], strict=True)
            ),
        )
        for tower, part in mask.items()
    }
