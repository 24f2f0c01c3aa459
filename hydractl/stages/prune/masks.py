"""Which heads stay: scores and a budget, or masks written elsewhere, become one mask a member."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import ManifestError, UsageError
from hydractl.families.load import OpenModel
from hydractl.families.timm.models import untagged
from hydractl.heads.budget import total_heads
from hydractl.heads.masks import full_mask, shape_of
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadMask, HeadScores, MaskOrigin, Shape, TowerShape
from hydractl.manifest.header import InputFile, check_mask_fits, samples_of
from hydractl.messages import counted
from hydractl.output.atomic_write import is_stream
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.prune.config import PruneConfig, Strategy, needs_pool
from hydractl.stages.prune.diverse import DiverseReport
from hydractl.stages.prune.sample_masks import STRATEGIES, DrawnMasks, Material, check_pool, in_groups
from hydractl.stages.shared.mask_selection import Quota, own_quota, quota_of
from hydractl.stages.shared.output_record import TOOL, document_input, scoring_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What members keep, and where that came from.

    Attributes:
        masks: One a member.
        sources: The files and data that each member's mask came from, as lineage names them.
        remarks: What `--keep auto` chose, in words.
        diverse: What `diverse` chose.
    """

    masks: tuple[HeadMask, ...]
    sources: tuple[tuple[InputFile, ...], ...]
    remarks: tuple[str, ...] = ()
    diverse: DiverseReport | None = None


def choose_masks(config: PruneConfig, opened: OpenModel, team: ProcessGroup, progress: Progress) -> Chosen:
    """Return each member's mask.

    Raises:
        ManifestError: If a scores or mask file is malformed or is for another architecture.
        UsageError: If budget, pool, members and strategy do not fit the model or the scores.
        DataError: If `diverse` is given data that do not fit.
    """
    if config.masks:
        return _read_masks(config, opened, progress)
    scores = tuple(_read_scores(path, opened, progress) for path in config.scores)
    strategy = _strategy(config, scores)
    shape = _shape(config, opened, scores)
    quotas = () if strategy is Strategy.CLUSTERS else _quotas(config, scores, shape)
    if config.pool is not None:
        check_pool(config.pool, quotas[0], total=total_heads(shape))
    material = Material(config=config, opened=opened, scores=scores, shape=shape, quotas=quotas, team=team)
    drawn_masks = STRATEGIES[strategy](in_groups(material) if config.whole_groups else material, progress)
    if config.budget is not None and any(s.clusters is not None for s in scores):
        progress.warn("a budget selects heads by score only; `--keep auto` keeps one head of each cluster")
    remarks = [quota.remark for quota in quotas if quota.remark is not None]
    if any(quota.remark is not None and quota.removals == 0 for quota in quotas):
        progress.warn(
            "these scores remove no head, so the member equals the base; give a budget such as `--remove R`"
        )
    if strategy is Strategy.CLUSTERS:
        remarks = [own_quota(config.scores[0], scores[0], shape).remark or ""]
    unpruned_towers = {
        n: m for n, m in full_mask(opened.header.architecture.towers).items() if n not in shape
    }
    files = tuple(
        document_input(p, s.digest() if is_stream(p) else None, made_by=scoring_step(s, opened))
        for p, s in zip(config.scores, scores, strict=True)
    )
    sources = tuple(
        (files[i : i + 1] if len(files) > 1 else files) + drawn_masks.sources
        for i in range(len(drawn_masks.masks))
    )
    return Chosen(
        masks=tuple(
            HeadMask(
                towers={**unpruned_towers, **mask},
                architecture=opened.header.architecture.name,
                base=opened.checkpoint.digest,
                origin=_origin(material, strategy, drawn_masks, member=i),
                samples=samples_of(sources[i]),
            )
            for i, mask in enumerate(drawn_masks.masks)
        ),
        sources=sources,
        remarks=tuple(remarks),
        diverse=drawn_masks.diverse,
    )


def _read_masks(config: PruneConfig, opened: OpenModel, progress: Progress) -> Chosen:
    masks = tuple(_read_mask(path, opened, progress) for path in config.masks)
    sources = tuple(
        (document_input(p, m.digest() if is_stream(p) else None),)
        for p, m in zip(config.masks, masks, strict=True)
    )
    return Chosen(masks=masks, sources=sources)


def _strategy(config: PruneConfig, scores: Sequence[HeadScores]) -> Strategy:
    """Return the strategy that was named, or that options and scores imply."""
    if config.strategy is not None:
        return config.strategy
    if len(scores) > 1:
        return Strategy.OBJECTIVES
    if config.pool is not None:
        return Strategy.SAMPLE
    if config.auto and scores[0].clusters is not None:
        return Strategy.CLUSTERS
    if config.members > 1:
        raise needs_pool()
    return Strategy.BEST


def _shape(config: PruneConfig, opened: OpenModel, scores: Sequence[HeadScores]) -> dict[str, TowerShape]:
    """Return the shape of the towers that lose heads: those with scores, or all."""
    if len({frozenset(s.towers) for s in scores}) > 1:
        raise UsageError(
            "the scores files are for different towers", hint="score all with the same `--towers`"
        )
    shape = {
        name: size
        for name, size in shape_of(opened.header.architecture.towers).items()
        if not scores or name in scores[0].towers
    }
    layers = max(size.layers for size in shape.values())
    if config.diverge_from > layers:
        raise UsageError(
            f"`--diverge-from {config.diverge_from}`: must be in 0..{layers}; the model has {counted(layers, 'layer')}",
            hint=f"with 0 members differ in every layer, with {layers} in none",
        )
    return shape


def _quotas(config: PruneConfig, scores: Sequence[HeadScores], shape: Shape) -> tuple[Quota, ...]:
    if config.budget is None:
        return tuple(own_quota(p, s, shape) for p, s in zip(config.scores, scores, strict=True))
    return (quota_of(config.budget, shape),) * max(1, len(scores))


def _origin(material: Material, strategy: Strategy, drawn_masks: DrawnMasks, *, member: int) -> MaskOrigin:
    config, scores_index = material.config, member if len(material.scores) > 1 else 0
    options: dict[str, OptionValue] = {
        **(material.quotas[scores_index].options if material.quotas else {}),
        "per_layer": config.per_layer or None,
        "whole_groups": config.whole_groups or None,
        **drawn_masks.options,
        **(drawn_masks.member_options[member] if drawn_masks.member_options else {}),
        "diverge_from": config.diverge_from or None,
    }
    return MaskOrigin(
        strategy=strategy,
        method=material.scores[scores_index].method if material.scores else None,
        scores=(material.scores[scores_index].digest(),) if material.scores else (),
        budget={k: v for k, v in options.items() if v is not None},
        seed=config.seed if drawn_masks.seeded else None,
        member=member,
        tool=TOOL,
    )


def _read_mask(path: Path, opened: OpenModel, progress: Progress) -> HeadMask:
    """Read a head mask for a base.

    Raises:
        ManifestError: If it is malformed, or is for another architecture.
    """
    mask = HeadMask.read(path)
    name = opened.header.architecture.name
    if mask.architecture is not None and untagged(mask.architecture) != untagged(name):
        raise ManifestError(
            f"{path}: architecture is `{mask.architecture}`, but {opened.reference} is a `{name}`",
            hint="a mask without the key `architecture` fits any model of that shape",
        )
    try:
        check_mask_fits(mask.towers, opened.header.architecture, where="towers")
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="the mask may be for another model") from error
    if mask.base is not None and mask.base != opened.checkpoint.digest:
        progress.warn(
            f"{path}: was made for another base than {opened.reference} (same architecture, different weights)"
        )
    return mask


def _read_scores(path: Path, opened: OpenModel, progress: Progress) -> HeadScores:
    """Read the scores of a base's heads.

    Raises:
        ManifestError: If they are malformed, or are for another architecture.
    """
    scores = HeadScores.read(path)
    name, towers = opened.header.architecture.name, opened.header.architecture.towers
    score_hint = f"score this model: `hydractl score {shlex.quote(opened.reference)} --data VAL -o {shlex.quote(str(path))}`"
    for scored in sorted(scores.towers or towers):
        table, tower = scores.tables.get(scored, ()), towers.get(scored)
        if tower is None:
            raise ManifestError(
                f"{path}: towers has `{scored}`, but {opened.reference} has {', '.join(towers)}",
                hint="the scores may be for another model",
            )
        layers, heads = len(table), len(table[0]) if table else 0
        if (layers, heads) != (tower.layers, tower.num_heads):
            raise ManifestError(
                f"{path}: towers.{scored}.scores is {layers} layers by {heads} heads, but "
                f"{opened.reference} has {tower.layers} by {tower.num_heads}",
                hint=score_hint,
            )
    if untagged(scores.architecture) != untagged(name):
        raise ManifestError(
            f"{path}: architecture is `{scores.architecture}`, but {opened.reference} is a `{name}`",
            hint=score_hint,
        )
    if scores.model.sha256 != opened.checkpoint.digest:
        progress.warn(f"{path}: the scores are for other weights than those of {opened.reference}")
    return scores
