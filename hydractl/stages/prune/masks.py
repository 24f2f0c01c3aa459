"""Which heads stay: scores and a budget, or masks written elsewhere, become one mask a member."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import cast

import torch

from hydractl import progress
from hydractl.errors import ManifestError, UsageError
from hydractl.families.finite import as_stored, check_weights
from hydractl.families.load import OpenModel
from hydractl.families.timm.models import untagged
from hydractl.fusion.plan import prune_tensor, zero_dropped
from hydractl.heads.budget import HeadBudget, total_heads
from hydractl.heads.masks import (
    Sampling,
    cluster_masks,
    full_mask,
    random_masks,
    random_masks_per_layer,
    sample_masks,
    shape_of,
    share_before,
    total_kept,
)
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import (
    HeadMask,
    HeadScores,
    Mask,
    MaskOrigin,
    Shape,
    TowerKeep,
    TowerScores,
    TowerShape,
)
from hydractl.manifest.header import InputFile, check_mask_fits, samples_of
from hydractl.messages import counted
from hydractl.output.publish import is_stream
from hydractl.processes.distributed import ProcessGroup
from hydractl.provenance.up_to_date import TOOL, document_input, scores_step
from hydractl.pruning.selection import (
    Quota,
    check_long_enough,
    clusters_of,
    mask_of,
    order_of,
    own_quota,
    quota_of,
)
from hydractl.stages.prune.config import NEEDS_POOL, DiverseConfig, PruneConfig, Strategy
from hydractl.stages.prune.diverse import DiverseReport, Session, choose
from hydractl.tensor_spec import Chunks, TensorSpec, tensor_bytes

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


def _best(material: Material) -> DrawnMasks:
    """One mask a scores file: its most important heads."""
    config = material.config
    masks = [
        _best_of(material, path, scores, quota)
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


def _best_of(material: Material, path: Path, scores: HeadScores, quota: Quota) -> dict[str, TowerKeep]:
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


def _sample(material: Material) -> DrawnMasks:
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


def _clusters(material: Material) -> DrawnMasks:
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


def _random(material: Material) -> DrawnMasks:
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


def _diverse(material: Material) -> DrawnMasks:
    """The most diverse of many draws."""
    config = cast("DiverseConfig", material.config.diverse)  # as the configuration sees to
    draws = _draws(material, config.candidates)
    check_weights(material.opened)
    choice = choose(
        material.opened,
        material.scores[0],
        draws,
        config,
        members=material.config.members,
        session=Session(material.team),
    )
    return DrawnMasks(
        masks=[draws[candidate.draw] for candidate in choice.report.chosen],
        options={"pool": material.config.pool, **choice.options},
        member_options=[{"draw": c.draw, "objective_value": c.objective} for c in choice.report.chosen],
        seeded=True,
        sources=choice.sources,
        diverse=choice.report,
    )


STRATEGIES: Mapping[Strategy, Callable[[Material], DrawnMasks]] = {
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


def choose_masks(config: PruneConfig, opened: OpenModel, team: ProcessGroup) -> Chosen:
    """Return each member's mask.

    Raises:
        ManifestError: If a scores or mask file is malformed or is for another architecture.
        UsageError: If budget, pool, members and strategy do not fit the model or the scores.
        DataError: If `diverse` is given data that do not fit.
    """
    if config.masks:
        read_masks = tuple(_read_mask(path, opened) for path in config.masks)
        return Chosen(
            masks=read_masks,
            sources=tuple(
                (document_input(path, mask.digest() if is_stream(path) else None),)
                for path, mask in zip(config.masks, read_masks, strict=True)
            ),
        )
    scores = tuple(_read_scores(path, opened) for path in config.scores)
    strategy = _strategy(config, scores)
    shape = _shape(config, opened, scores)
    quotas = () if strategy is Strategy.CLUSTERS else _quotas(config, scores, shape)
    if config.pool is not None:
        check_pool(config.pool, quotas[0], total=total_heads(shape))
    material = Material(config=config, opened=opened, scores=scores, shape=shape, quotas=quotas, team=team)
    drawn_masks = STRATEGIES[strategy](in_groups(material) if config.whole_groups else material)
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
        document_input(p, s.digest() if is_stream(p) else None, made_by=scores_step(s, opened))
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
        raise NEEDS_POOL.refusal(config, "members", "needs")
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


def _read_mask(path: Path, opened: OpenModel) -> HeadMask:
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


def _read_scores(path: Path, opened: OpenModel) -> HeadScores:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A member to be.

    Attributes:
        opened: The base.
        mask: The heads that stay.
        path: Where it goes.
        sources: What the mask came from.
        specs: Its tensors, as they are stored.
    """

    opened: OpenModel
    mask: HeadMask
    path: Path
    sources: tuple[InputFile, ...]
    specs: Mapping[str, TensorSpec]

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored.

        Raises:
            CheckFailed: If its dtype is too small for a number.
        """
        opened, spec = self.opened, self.specs[name]
        member_tensor = prune_tensor(
            opened.family, opened.header.architecture, self.mask.towers, name, opened.checkpoint.tensor(name)
        )
        larger = spec.dtype == "F16" and "`--dtype bf16` or `--dtype fp32` can represent larger numbers"
        return as_stored(
            name, member_tensor, spec, hint=larger or "leave `--dtype` out to keep the stored numbers"
        )

    def masked(self, name: str) -> torch.Tensor:
        """Return the base's tensor that the member's must equal: heads zeroed, numbers rounded as they are stored, in fp32.

        What that dtype is too small for stays: it is in a head that goes, or `tensor` refuses it.
        """
        opened, spec = self.opened, self.specs[name]
        base_tensor = opened.checkpoint.tensor(name)
        if spec.is_floating:
            rounded, base_tensor = base_tensor.to(spec.torch_dtype).float(), base_tensor.float()
            base_tensor = torch.where(rounded.isfinite(), rounded, base_tensor)
        return zero_dropped(opened.family, opened.header.architecture, self.mask.towers, {name: base_tensor})[
            name
        ]

    def chunks(self, name: str) -> Chunks:
        """Return a tensor's bytes, those of the base where nothing changes; raises as `tensor`."""
        stored = self.opened.checkpoint
        return (
            [stored.spans[name]]
            if stored.specs[name] == self.specs[name]
            else [tensor_bytes(self.tensor(name))]
        )
