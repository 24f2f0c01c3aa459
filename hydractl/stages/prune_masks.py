"""Which heads stay: scores and a budget, or masks written elsewhere, become one mask a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydractl.errors import ManifestError, UsageError
from hydractl.heads.masks import HeadId, TowerMask, TowerShape
from hydractl.heads.members import Sampling, sample_masks, share_before
from hydractl.heads.select import best_mask, best_mask_per_layer, removal_order
from hydractl.manifest import HeadMask, HeadScores, MaskOrigin, TowerKeep, check_mask_fits
from hydractl.publish import is_stream
from hydractl.stages.lineage import TOOL, document_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hydractl.families.opening import OpenModel
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
    try:
        chosen = _choose(config, scores, architecture)
    except ValueError as error:
        raise UsageError(str(error)) from error
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
    for name, tower in opened.header.architecture.towers.items():
        table = scores.towers[name].scores if name in scores.towers else ()
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
    budget = config.budget
    if budget is None:
        raise ValueError("no budget")
    shape = {name: TowerShape(t.layers, t.num_heads) for name, t in architecture.towers.items()}
    removals = budget.removals(shape)
    orders = [
        removal_order(
            {name: s.towers[name].scores for name in shape},
            [HeadId(r.tower, r.layer, r.head) for r in s.removals] if s.removals is not None else None,
        )
        for s in scores
    ]
    if config.pool is not None:
        sampling = Sampling(
            pool=config.pool, members=config.members, seed=config.seed, diverge_from=config.diverge_from
        )
        return sample_masks(orders[0], shape, removals=removals, sampling=sampling)
    if config.per_layer and budget.keep_per_layer is not None:
        masks = [best_mask_per_layer(order, shape, keep=budget.keep_per_layer) for order in orders]
    else:
        masks = [best_mask(order, shape, removals=removals) for order in orders]
    return share_before(masks, config.diverge_from)


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
