"""Which heads stay: scores and a budget, or masks written elsewhere, become one mask a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.errors import ManifestError, UsageError
from hydractl.heads.masks import HeadId, TowerMask, TowerShape, full_mask, total_heads
from hydractl.heads.members import Sampling, sample_masks, share_before
from hydractl.heads.select import best_mask, best_mask_per_layer, removal_order
from hydractl.manifest import HeadMask, HeadScores, MaskOrigin, TowerKeep, check_mask_fits
from hydractl.progress import counted
from hydractl.publish import is_stream
from hydractl.stages.lineage import TOOL, document_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hydractl.families.opening import OpenModel
    from hydractl.heads.masks import Shape
    from hydractl.manifest import Architecture, InputFile, Option
    from hydractl.progress import Progress
    from hydractl.stages.prune_config import PruneConfig


def choose_masks(
    config: PruneConfig, opened: OpenModel, progress: Progress
) -> tuple[list[HeadMask], list[InputFile]]:
    """Return each member's mask, and the file that it came from as lineage names it.

    Raises:
        ManifestError: If a scores or mask file is malformed or is for another architecture.
        UsageError: If budget, pool and members do not fit the model.
    """
    architecture = opened.header.architecture
    if config.masks:
        masks = [_given_mask(path, opened, progress) for path in config.masks]
        return masks, [
            document_input(p, m.digest() if is_stream(p) else None)
            for p, m in zip(config.masks, masks, strict=True)
        ]
    scores = [_given_scores(path, opened, progress) for path in config.scores]
    chosen = _choose(config, scores, architecture)
    digests = [s.digest() for s in scores]
    masks = [
        HeadMask(
            towers={name: TowerKeep(num_heads=m.num_heads, keep=m.keep) for name, m in mask.items()},
            architecture=architecture.name,
            base=opened.checkpoint.digest,
            origin=_origin(config, scores, digests, member=i),
        )
        for i, mask in enumerate(chosen)
    ]
    files = [document_input(p, d) for p, d in zip(config.scores, digests, strict=True)]
    return masks, files if len(files) == len(masks) else files * len(masks)


def _given_mask(path: Path, opened: OpenModel, progress: Progress) -> HeadMask:
    mask = HeadMask.read(path)
    name = opened.header.architecture.name
    if mask.architecture not in {None, name}:
        raise ManifestError(
            f"{path}: architecture is `{mask.architecture}`, but {opened.reference} is a `{name}`",
            hint="delete the key `architecture` from the mask if it is meant for this model",
        )
    try:
        check_mask_fits(mask.towers, opened.header.architecture, where="towers")
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="is the mask for another model?") from error
    if mask.base is not None and mask.base != opened.checkpoint.digest:
        progress.warn(
            f"{path}: was made for another base than {opened.reference} (same architecture, other weights)"
        )
    return mask


def _given_scores(path: Path, opened: OpenModel, progress: Progress) -> HeadScores:
    scores = HeadScores.read(path)
    towers = opened.header.architecture.towers
    for name in sorted(scores.towers.keys() | (towers.keys() if not scores.towers else ())):
        table, tower = scores.towers[name].scores if name in scores.towers else (), towers.get(name)
        if tower is None:
            raise ManifestError(
                f"{path}: towers has `{name}`, but {opened.reference} has {', '.join(towers)}",
                hint="are these the scores of another model?",
            )
        if (len(table), len(table[0]) if table else 0) != (tower.layers, tower.num_heads):
            raise ManifestError(
                f"{path}: towers.{name}.scores is {len(table)} layers by {len(table[0]) if table else 0} heads, "
                f"but {opened.reference} has {tower.layers} by {tower.num_heads}",
                hint=f"score this model: `hydractl score {opened.reference} -o {path}`",
            )
    if scores.model.sha256 != opened.checkpoint.digest:
        progress.warn(f"{path}: scores were measured on other weights than those of {opened.reference}")
    return scores


def _choose(
    config: PruneConfig, scores: Sequence[HeadScores], architecture: Architecture
) -> Sequence[Mapping[str, TowerMask]]:
    """Return the members' masks; a tower that the scores leave out keeps all of its heads."""
    rest = {n: t for n, t in architecture.towers.items() if n not in scores[0].towers}
    whole = full_mask({n: TowerShape(t.layers, t.num_heads) for n, t in rest.items()})
    return [{**whole, **mask} for mask in _choose_scored(config, scores, architecture)]


def _choose_scored(
    config: PruneConfig, scores: Sequence[HeadScores], architecture: Architecture
) -> Sequence[Mapping[str, TowerMask]]:
    budget = config.budget
    if budget is None:
        raise ValueError("no budget")
    scored = {frozenset(s.towers) for s in scores}
    if len(scored) > 1:
        raise UsageError(
            "the scores files are of different towers", hint="score all with the same `--towers`"
        )
    shape = {
        name: TowerShape(t.layers, t.num_heads)
        for name, t in architecture.towers.items()
        if name in scores[0].towers
    }
    layers = max(size.layers for size in shape.values())
    if config.diverge_from > layers:
        raise UsageError(
            f"`--diverge-from {config.diverge_from}`: must lie in 0..{layers}; the model has {counted(layers, 'layer')}",
            hint=f"0 lets members differ everywhere, {layers} nowhere",
        )
    try:
        removals = budget.removals(shape)
    except ValueError as error:
        raise UsageError(f"`{budget.typed}`: {error}") from error
    orders = [_order(path, s, shape) for path, s in zip(config.scores, scores, strict=True)]
    if config.per_layer and budget.keep_per_layer is not None:
        try:
            masks = [best_mask_per_layer(order, shape, keep=budget.keep_per_layer) for order in orders]
        except ValueError as error:
            hint = f"score again with `--remove {total_heads(shape)}`, which orders all heads"
            raise UsageError(f"`--per-layer`: {error}", hint=hint) from error
        return share_before(masks, config.diverge_from)
    for path, order in zip(config.scores, orders, strict=True):
        _check_amounts(config, order, path, removals=removals, total=total_heads(shape))
    if config.pool is None:
        masks = [best_mask(order, shape, removals=removals) for order in orders]
        return share_before(masks, config.diverge_from)
    sampling = Sampling(
        pool=config.pool, members=config.members, seed=config.seed, diverge_from=config.diverge_from
    )
    try:
        return sample_masks(orders[0], shape, removals=removals, sampling=sampling)
    except ValueError as error:
        hint = "give a larger `--pool`, fewer `--members` or an earlier `--diverge-from`"
        raise UsageError(str(error), hint=hint) from error


def _order(path: Path, scores: HeadScores, shape: Shape) -> tuple[HeadId, ...]:
    recorded = scores.removals
    try:
        return removal_order(
            {name: scores.towers[name].scores for name in shape},
            None if recorded is None else [HeadId(r.tower, r.layer, r.head) for r in recorded],
        )
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="was the file edited? score the model again") from error


def _check_amounts(
    config: PruneConfig, order: Sequence[HeadId], path: Path, *, removals: int, total: int
) -> None:
    """Refuse a pool or budget that the model, the scores or each other do not allow; a greedy order may stop early."""
    pool = config.pool
    budget = config.budget.typed if config.budget else ""
    if pool is not None and pool > total:
        raise UsageError(
            f"`--pool {pool}`: the model has {counted(total, 'head')}", hint=f"give at most `--pool {total}`"
        )
    if pool is not None and pool < removals:
        raise UsageError(
            f"`--pool {pool}`: `{budget}` removes {counted(removals, 'head')} of each member, more than the pool holds",
            hint=f"give a larger pool, for example `--pool {min(2 * removals, total)}`",
        )
    wanted, option = (removals, budget) if pool is None else (pool, f"--pool {pool}")
    if wanted > len(order):
        verb = "removes" if pool is None else "draws from"
        raise UsageError(
            f"{path}: orders {counted(len(order), 'head')} only, but `{option}` {verb} {wanted}",
            hint=f"score again with `--remove {wanted}` or more",
        )


def _origin(
    config: PruneConfig, scores: Sequence[HeadScores], digests: Sequence[str], *, member: int
) -> MaskOrigin:
    own = member if len(scores) > 1 else 0
    budget = config.budget
    options: dict[str, Option] = {
        "keep_per_layer": budget.keep_per_layer if budget else None,
        "remove": budget.remove if budget else None,
        "keep_fraction": budget.keep_fraction if budget else None,
        "per_layer": config.per_layer or None,
        "pool": config.pool,
        "diverge_from": config.diverge_from or None,
    }
    return MaskOrigin(
        strategy="sample" if config.pool is not None else "objectives" if len(scores) > 1 else "best",
        method=scores[own].method,
        scores=(digests[own],),
        budget={k: v for k, v in options.items() if v is not None},
        seed=config.seed if config.pool is not None else None,
        member=member,
        tool=TOOL,
    )
