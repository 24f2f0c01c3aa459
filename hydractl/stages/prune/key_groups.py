"""Pruning by whole groups of heads that share keys: a group is chosen as a head is, and then stands for its heads."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import cast

from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.manifest.head_mask import HeadScores, TowerScores, TowerShape
from hydractl.stages.prune.sample_masks import Material
from hydractl.stages.shared.mask_selection import quota_of


def in_groups(material: Material) -> Material:
    """Return what a strategy works on with groups in place of heads; a group's score is the mean of its heads'.

    Raises:
        UsageError: If heads share no keys, or a number of heads is not one of whole groups.
    """
    sharing, config = material.sharing, material.config
    budget = cast("HeadBudget", config.budget)  # as the configuration sees to
    if sharing == 1:
        raise UsageError(
            f"`--whole-groups`: each head of {material.opened.reference} has keys of its own",
            hint="leave it out",
        )

    def groups(option: str, count: int | None) -> int | None:
        if count is not None and count % sharing:
            raise UsageError(
                f"`{option} {count}`: is no number of whole groups, as {sharing} heads share keys",
                hint=f"for example `{option} {count + sharing - count % sharing}`",
            )
        return None if count is None else count // sharing

    in_all = replace(
        budget,
        keep_per_layer=groups("--keep", budget.keep_per_layer),
        remove=groups("--remove", budget.remove),
    )
    shape = {n: TowerShape(size.layers, size.num_heads // sharing) for n, size in material.shape.items()}
    return replace(
        material,
        config=replace(config, budget=in_all, pool=groups("--pool", config.pool)),
        scores=tuple(_means(scores, sharing) for scores in material.scores),
        shape=shape,
        quotas=(quota_of(in_all, shape),) * len(material.quotas),
    )


def _means(scores: HeadScores, sharing: int) -> HeadScores:
    """Return the scores of groups; a greedy order of heads is none of groups."""
    towers = {
        name: TowerScores(
            scores=tuple(
                tuple(fmean(row[i : i + sharing]) for i in range(0, len(row), sharing))
                for row in table.scores
            )
        )
        for name, table in scores.towers.items()
    }
    return scores.model_copy(update={"towers": towers, "removals": None})
