"""Masks of each strategy from scores, a quota and a seed. With `--whole-groups`, groups of heads that share keys take the place of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import cast

from hydractl.errors import UsageError
from hydractl.families.load import OpenModel
from hydractl.heads.budget import HeadBudget, total_heads
from hydractl.heads.masks import total_kept
from hydractl.heads.member_masks import (
    Sampling,
    cluster_masks,
    random_masks,
    random_masks_per_layer,
    sample_masks,
    share_before,
)
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadScores, Mask, Shape, TowerKeep, TowerScores, TowerShape
from hydractl.manifest.header import InputFile
from hydractl.messages import counted
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.prune.config import PruneConfig, Strategy
from hydractl.stages.prune.diverse import DiverseReport, Session, choose
from hydractl.stages.shared.finite import check_weights
from hydractl.stages.shared.mask_selection import (
    Quota,
    check_long_enough,
    clusters_of,
    mask_of,
    order_of,
    quota_of,
)


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


TOO_ALIKE = "use fewer `--members`, or an earlier layer in `--diverge-from`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What a strategy works on.

    Attributes:
        config: What was asked for.
        opened: The base.
        scores: None, one, or one a member.
        shape: Of the towers that lose heads.
        quotas: How many go, for each scores file, or the only one; none where clusters say it.
        team: Who runs candidates together.
    """

    config: PruneConfig
    opened: OpenModel
    scores: tuple[HeadScores, ...]
    shape: Shape
    quotas: tuple[Quota, ...]
    team: ProcessGroup

    @property
    def sharing(self) -> int:
        """How many heads share keys, and go together with `--whole-groups`; of several towers the most."""
        towers = self.opened.header.architecture.towers
        return max(towers[name].sharing for name in self.shape)

    def of_heads(self, masks: Sequence[Mask]) -> tuple[dict[str, TowerKeep], ...]:
        """Return masks as those of heads, where they are of groups."""
        sharing = self.sharing if self.config.whole_groups else 1
        return tuple(
            {
                name: TowerKeep(
                    num_heads=tower.num_heads * sharing,
                    keep=tuple(
                        tuple(group * sharing + i for group in groups for i in range(sharing))
                        for groups in tower.keep
                    ),
                )
                for name, tower in mask.items()
            }
            for mask in masks
        )

    def sampling(self, members: int) -> Sampling:
        """Return how several masks are drawn."""
        return Sampling(
            pool=self.config.pool,
            members=members,
            seed=self.config.seed,
            diverge_from=self.config.diverge_from,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMasks:
    """What a strategy answers.

    Attributes:
        masks: One a member, of the towers that lose heads.
        options: What every mask's origin records besides the budget.
        member_options: What each mask's origin records of itself; empty for nothing.
        seeded: Whether chance had a part.
        sources: Data that were looked at.
        diverse: What `diverse` chose.
    """

    masks: Sequence[Mask]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    member_options: Sequence[Mapping[str, OptionValue]] = ()
    seeded: bool = False
    sources: tuple[InputFile, ...] = ()
    diverse: DiverseReport | None = None


def _best(material: Material, progress: Progress) -> DrawnMasks:
    """One mask a scores file: its most important heads."""
    config = material.config
    masks = [
        _best_of(material, path, scores, quota, progress)
        for path, scores, quota in zip(config.scores, material.scores, material.quotas, strict=True)
    ]
    shared = share_before(masks, config.diverge_from)
    removed = [total_heads(mask) - total_kept(mask) for mask in shared]
    for i, (mask, count) in enumerate(zip(shared, removed, strict=True)):
        if mask in shared[:i]:
            progress.warn(f"members {shared.index(mask)} and {i} keep the same heads")
        if total_kept(mask) != total_kept(masks[i]):
            progress.warn(
                f"member {i} loses {counted(count, 'head')}, because before layer "
                f"{config.diverge_from} it keeps the heads of member 0"
            )
    return DrawnMasks(
        masks=material.of_heads(shared),
        member_options=[{"removed": count} for count in removed] if config.diverge_from else (),
    )


def _best_of(
    material: Material, path: Path, scores: HeadScores, quota: Quota, progress: Progress
) -> dict[str, TowerKeep]:
    """Return the mask of the most important heads of one scores file."""
    by_layer, budget_text = scores.options.get("keep"), f"`{quota.option_text}`"
    if by_layer is not None and quota.keep is None and quota.remark is None:
        progress.warn(
            f"{path}: `{scores.method}` scored layer by layer, so its scores are not comparable "
            f"between layers: `--keep {by_layer} --per-layer` compares heads within each layer"
        )
    if quota.keep is not None and by_layer not in {None, quota.keep}:
        progress.warn(
            f"{path}: `{scores.method}` scored layers that each keep {by_layer} heads; score again with {budget_text}"
        )
    return mask_of(path, scores, material.shape, quota)


def _sample(material: Material, _: Progress) -> DrawnMasks:
    """Several masks out of one order's pool."""
    return DrawnMasks(
        masks=_draws(material, material.config.members), options={"pool": material.config.pool}, seeded=True
    )


def _draws(material: Material, count: int) -> tuple[dict[str, TowerKeep], ...]:
    """Draw masks from the pool."""
    config, path, quota = material.config, material.config.scores[0], material.quotas[0]
    order, pool = order_of(path, material.scores[0], material.shape), config.pool or 0
    check_long_enough(order, path, required=pool, verb=f"`--pool {pool}` draws from")
    try:
        masks = sample_masks(
            order, material.shape, removals=quota.removals, sampling=material.sampling(count)
        )
    except ValueError as error:
        fewer = "--members" if config.diverse is None else "--candidates"
        raise UsageError(
            str(error), hint=f"give a larger `--pool`, fewer `{fewer}` or an earlier `--diverge-from`"
        ) from error
    return material.of_heads(masks)


def _clusters(material: Material, _: Progress) -> DrawnMasks:
    """One head of each cluster."""
    config, scores, path = material.config, material.scores[0], material.config.scores[0]
    if scores.clusters is None:
        raise UsageError(
            f"{path}: was made by `{scores.method}`, which makes no clusters of heads",
            hint="`--strategy clusters` needs scores by `--method cahp`",
        )
    try:
        masks = cluster_masks(
            clusters_of(scores), scores.tables, members=config.members, diverge_from=config.diverge_from
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint=TOO_ALIKE) from error
    return DrawnMasks(masks=masks, options={"keep": "auto", "clusters": len(scores.clusters)})


def _random(material: Material, _: Progress) -> DrawnMasks:
    """Heads that chance leaves."""
    quota, sampling = material.quotas[0], material.sampling(material.config.members)
    try:
        masks = (
            random_masks(material.shape, removals=quota.removals, sampling=sampling)
            if quota.keep is None
            else random_masks_per_layer(material.shape, keep=quota.keep, sampling=sampling)
        )
    except ValueError as error:
        raise UsageError(str(error), hint=TOO_ALIKE) from error
    return DrawnMasks(masks=material.of_heads(masks), seeded=True)


def _diverse(material: Material, progress: Progress) -> DrawnMasks:
    """The most diverse of many draws."""
    config = material.config.diverse
    if config is None:
        raise ValueError("no scores to choose heads by")
    draws = _draws(material, config.candidates)
    check_weights(material.opened)
    choice = choose(
        material.opened,
        material.scores[0],
        draws,
        config,
        members=material.config.members,
        session=Session(material.team, progress),
    )
    return DrawnMasks(
        masks=[draws[candidate.draw] for candidate in choice.report.chosen],
        options={"pool": material.config.pool, **choice.options},
        member_options=[{"draw": c.draw, "objective_value": c.objective} for c in choice.report.chosen],
        seeded=True,
        sources=choice.sources,
        diverse=choice.report,
    )


STRATEGIES: Mapping[Strategy, Callable[[Material, Progress], DrawnMasks]] = {
    Strategy.BEST: _best,
    Strategy.SAMPLE: _sample,
    Strategy.OBJECTIVES: _best,
    Strategy.CLUSTERS: _clusters,
    Strategy.RANDOM: _random,
    Strategy.DIVERSE: _diverse,
}


def check_pool(pool: int, quota: Quota, *, total: int) -> None:
    """Refuse a pool that is larger than the model or smaller than the number of removed heads.

    Args:
        pool: Number of heads, as typed.
        quota: Number of removed heads.
        total: Number of heads of the model.
    """
    if pool > total:
        raise UsageError(
            f"`--pool {pool}`: the model has {counted(total, 'head')}", hint=f"give at most `--pool {total}`"
        )
    if pool < quota.removals:
        raise UsageError(
            f"`--pool {pool}`: `{quota.option_text}` removes {counted(quota.removals, 'head')} from "
            "each member, more than the pool has",
            hint=f"give a larger pool, for example `--pool {min(2 * quota.removals, total)}`",
        )
