"""What each strategy does: scores, an amount and a seed become masks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.heads.clusters import cluster_masks
from hydractl.heads.masks import TowerMask, full_mask, shape_of, total_heads
from hydractl.heads.members import Sampling, random_masks, random_masks_per_layer, sample_masks, share_before
from hydractl.heads.select import best_mask, best_mask_per_layer
from hydractl.progress import counted
from hydractl.stages.prune.diverse import choose
from hydractl.stages.prune.strategy import Strategy
from hydractl.stages.shared.amount import cluster_mask, clusters_of, order_of, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hydractl.families.opening import OpenModel
    from hydractl.heads.masks import HeadId, Mask, Shape
    from hydractl.manifest import HeadScores, InputFile, Option
    from hydractl.progress import Progress
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.report import DiverseReport
    from hydractl.stages.shared.amount import Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a strategy works on.

    Attributes:
        config: What was asked for.
        opened: The base.
        scores: None, one, or one a member.
        shape: Of the towers that lose heads.
        amounts: How many go, for each scores file, or the only one; none where clusters say it.
    """

    config: PruneConfig
    opened: OpenModel
    scores: tuple[HeadScores, ...]
    shape: Shape
    amounts: tuple[Amount, ...]

    def orders(self) -> list[tuple[HeadId, ...]]:
        """Return for each scores file the heads in the order in which they go."""
        files = zip(self.config.scores, self.scores, strict=True)
        return [order_of(path, scores, self.shape) for path, scores in files]

    def whole(self) -> dict[str, TowerMask]:
        """Return the mask of the towers that keep all of their heads."""
        shape = shape_of(self.opened.header.architecture.towers)
        return full_mask({name: size for name, size in shape.items() if name not in self.shape})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a strategy answers.

    Attributes:
        masks: One a member, of the towers that lose heads.
        options: What every mask's origin records besides the budget.
        own: What each mask's origin records of itself; empty for nothing.
        seeded: Whether chance had a part.
        sources: Data that were looked at.
        diverse: What `diverse` chose.
    """

    masks: Sequence[Mask]
    options: Mapping[str, Option] = field(default_factory=dict)
    own: Sequence[Mapping[str, Option]] = ()
    seeded: bool = False
    sources: tuple[InputFile, ...] = ()
    diverse: DiverseReport | None = None


def _best(task: Task, progress: Progress) -> Drawn:
    """One mask a scores file: its most important heads."""
    config = task.config
    files = zip(config.scores, task.scores, task.orders(), task.amounts, strict=True)
    masks = [_best_of(task, *file, progress) for file in files]
    shared = share_before(masks, config.diverge_from)
    removed = [sum(part.removed for part in mask.values()) for mask in shared]
    for i, (mask, count) in enumerate(zip(shared, removed, strict=True)):
        if mask in shared[:i]:
            progress.warn(f"members {shared.index(mask)} and {i} keep the same heads")
        if count != sum(part.removed for part in masks[i].values()):
            progress.warn(
                f"member {i} loses {counted(count, 'head')}: before layer {config.diverge_from} it keeps what member 0 keeps"
            )
    own = [{"removed": count} for count in removed] if config.diverge_from else ()
    return Drawn(masks=shared, own=own)


def _best_of(
    task: Task, path: Path, scores: HeadScores, order: Sequence[HeadId], amount: Amount, progress: Progress
) -> dict[str, TowerMask]:
    """Return the mask of the most important heads of one scores file."""
    config, budget = task.config, task.config.budget
    if budget is None and scores.clusters is not None:
        return cluster_mask(path, scores)
    by_layer = scores.options.get("keep")
    if by_layer is not None and not config.per_layer:
        progress.warn(
            f"{path}: `{scores.method}` scored layer by layer, and its scores of different layers are no measure of each "
            f"other: `--keep {by_layer} --per-layer` compares heads of one layer only"
        )
    if budget is None or not budget.per_layer or budget.keep_per_layer is None:
        _check_order(order, path, wanted=amount.removals, verb=f"`{amount.typed}` removes")
        return best_mask(order, task.shape, removals=amount.removals)
    if by_layer not in {None, budget.keep_per_layer}:
        progress.warn(
            f"{path}: `{scores.method}` scored layers that keep {by_layer} heads each; score again with `{budget.typed}`"
        )
    try:
        return best_mask_per_layer(order, task.shape, keep=budget.keep_per_layer)
    except ValueError as error:
        hint = f"score again with `--remove {total_heads(task.shape)}`, which orders all heads"
        raise UsageError(f"`--per-layer`: {error}", hint=hint) from error


def _sample(task: Task, _: Progress) -> Drawn:
    """Several masks out of one order's pool."""
    return Drawn(masks=_draws(task, task.config.members), options={"pool": task.config.pool}, seeded=True)


def _draws(task: Task, count: int) -> tuple[dict[str, TowerMask], ...]:
    """Draw masks from the pool."""
    config, (order,), amount = task.config, task.orders(), task.amounts[0]
    pool = config.pool or 0
    _check_pool(pool, amount, total=total_heads(task.shape))
    _check_order(order, config.scores[0], wanted=pool, verb=f"`--pool {pool}` draws from")
    sampling = Sampling(pool=pool, members=count, seed=config.seed, diverge_from=config.diverge_from)
    try:
        return sample_masks(order, task.shape, removals=amount.removals, sampling=sampling)
    except ValueError as error:
        fewer = "--members" if config.diverse is None else "--candidates"
        hint = f"give a larger `--pool`, fewer `{fewer}` or an earlier `--diverge-from`"
        raise UsageError(str(error), hint=hint) from error


def _clusters(task: Task, _: Progress) -> Drawn:
    """One head of each cluster."""
    config, scores, path = task.config, task.scores[0], task.config.scores[0]
    if scores.clusters is None:
        raise UsageError(
            f"{path}: is by `{scores.method}`, which makes no clusters of heads",
            hint="`--strategy clusters` is for scores by `--method cahp`",
        )
    try:
        masks = cluster_masks(
            clusters_of(scores),
            tables_of(scores),
            members=config.members,
            diverge_from=config.diverge_from,
        )
    except ValueError as error:
        hint = "make fewer `--members`, or let them differ from an earlier layer with `--diverge-from`"
        raise UsageError(f"{path}: {error}", hint=hint) from error
    return Drawn(masks=masks, options={"keep": "auto", "clusters": len(scores.clusters)})


def _random(task: Task, _: Progress) -> Drawn:
    """Heads that chance leaves."""
    config = task.config
    keep = config.budget.keep_per_layer if config.budget is not None and config.per_layer else None
    try:
        masks = (
            random_masks(
                task.shape,
                removals=task.amounts[0].removals,
                members=config.members,
                seed=config.seed,
                diverge_from=config.diverge_from,
            )
            if keep is None
            else random_masks_per_layer(
                task.shape,
                keep=keep,
                members=config.members,
                seed=config.seed,
                diverge_from=config.diverge_from,
            )
        )
    except ValueError as error:
        hint = "make fewer `--members`, or let them differ from an earlier layer with `--diverge-from`"
        raise UsageError(str(error), hint=hint) from error
    return Drawn(masks=masks, seeded=True)


def _diverse(task: Task, progress: Progress) -> Drawn:
    """The most diverse of many draws."""
    asked = task.config.diverse
    if asked is None:
        raise ValueError("nothing to choose by")
    draws = _draws(task, asked.candidates)
    found = choose(task.opened, task.scores[0], draws, asked, members=task.config.members, progress=progress)
    return Drawn(
        masks=[draws[candidate.draw] for candidate in found.report.chosen],
        options={"pool": task.config.pool, **found.options},
        own=[{"draw": c.draw, "objective_value": c.objective} for c in found.report.chosen],
        seeded=True,
        sources=found.sources,
        diverse=found.report,
    )


STRATEGIES: Mapping[Strategy, Callable[[Task, Progress], Drawn]] = {
    Strategy.BEST: _best,
    Strategy.SAMPLE: _sample,
    Strategy.OBJECTIVES: _best,
    Strategy.CLUSTERS: _clusters,
    Strategy.RANDOM: _random,
    Strategy.DIVERSE: _diverse,
}


def _check_pool(pool: int, amount: Amount, *, total: int) -> None:
    """Refuse a pool larger than the model or smaller than what goes."""
    if pool > total:
        raise UsageError(
            f"`--pool {pool}`: the model has {counted(total, 'head')}", hint=f"give at most `--pool {total}`"
        )
    if pool < amount.removals:
        raise UsageError(
            f"`--pool {pool}`: `{amount.typed}` removes {counted(amount.removals, 'head')} of each member, "
            "more than the pool holds",
            hint=f"give a larger pool, for example `--pool {min(2 * amount.removals, total)}`",
        )


def _check_order(order: Sequence[HeadId], path: Path, *, wanted: int, verb: str) -> None:
    """Refuse scores that order too few heads: a greedy run may stop early."""
    if wanted > len(order):
        raise UsageError(
            f"{path}: orders {counted(len(order), 'head')} only, but {verb} {wanted}",
            hint=f"score again with `--remove {wanted}` or more",
        )
