"""Masks of members: selected by head importances and a budget, or read from files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from hydractl import progress
from hydractl.errors import ManifestError, UsageError
from hydractl.families.finite import check_weights
from hydractl.families.open_model import OpenModel
from hydractl.families.timm.models import untagged
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
from hydractl.provenance.output import TOOL, document_input, scores_step
from hydractl.pruning.diverse import DiverseChoice, DiverseReport
from hydractl.pruning.selection import (
    Quota,
    check_long_enough,
    clusters_of,
    mask_of,
    order_of,
    own_quota,
    quota_of,
)
from hydractl.pruning.strategies import Strategy

TOO_ALIKE = "use fewer `--members`, or an earlier layer in `--diverge-from`"
Compare = Callable[[HeadScores, Sequence[Mask]], DiverseChoice]
"""Selects the members of `diverse` among candidates drawn from the pool of a scores file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Input of a strategy.

    Attributes:
        opened: The base.
        scores: Paths and content of the scores files: no file, a single file, or a file for each member.
        shape: Number of layers and heads of each pruned tower.
        quotas: Number of heads to remove, for each scores file or for all members; empty if clusters
            determine the number.
        sampling: Settings for random masks.
        compare: Selects members among the drawn masks; only for `diverse`.
        group: Number of heads removed together.
    """

    opened: OpenModel
    scores: Sequence[tuple[Path, HeadScores]]
    shape: Shape
    quotas: tuple[Quota, ...]
    sampling: Sampling
    compare: Compare | None
    group: int = 1

    def of_heads(self, masks: Sequence[Mask]) -> tuple[dict[str, TowerKeep], ...]:
        """Convert masks of groups to masks of heads."""
        return tuple(
            {
                name: TowerKeep(
                    num_heads=tower.num_heads * self.group,
                    keep=tuple(
                        tuple(number * self.group + i for number in groups for i in range(self.group))
                        for groups in tower.keep
                    ),
                )
                for name, tower in mask.items()
            }
            for mask in masks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMasks:
    """Result of a strategy.

    Attributes:
        masks: Mask of each member, for the pruned towers.
        options: Options recorded in the origin of every mask, in addition to the budget.
        member_options: Options recorded in the origin of each member's mask; may be empty.
        seeded: Whether the masks depend on the seed.
        choice: Result of `diverse`; None for other strategies.
    """

    masks: Sequence[Mask]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    member_options: Sequence[Mapping[str, OptionValue]] = ()
    seeded: bool = False
    choice: DiverseChoice | None = None


def _best(material: Material) -> DrawnMasks:
    start = material.sampling.diverge_from
    masks = [
        _best_of(path, scores, material.shape, quota)
        for (path, scores), quota in zip(material.scores, material.quotas, strict=True)
    ]
    shared = share_before(masks, start)
    removed = [total_heads(mask) - total_kept(mask) for mask in shared]
    for i, (mask, count) in enumerate(zip(shared, removed, strict=True)):
        if mask in shared[:i]:
            progress.warn(f"members {shared.index(mask)} and {i} keep the same heads")
        if total_kept(mask) != total_kept(masks[i]):
            progress.warn(
                f"member {i} loses {counted(count, 'head')}, because before layer "
                f"{start} it keeps the heads of member 0"
            )
    return DrawnMasks(
        masks=material.of_heads(shared),
        member_options=[{"removed": count} for count in removed] if start else (),
    )


def _best_of(path: Path, scores: HeadScores, shape: Shape, quota: Quota) -> dict[str, TowerKeep]:
    """Return the mask of one scores file. Warn if the importances do not fit the budget."""
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
    return mask_of(path, scores, shape, quota)


def _sample(material: Material) -> DrawnMasks:
    """Draw masks from the pool. For `diverse`, these masks are the candidates."""
    path, scores = material.scores[0]
    pool = material.sampling.pool or 0
    order = order_of(scores, material.shape)
    check_long_enough(order, path, required=pool, verb=f"`--pool {pool}` draws from")
    try:
        draws = sample_masks(
            order, material.shape, removals=material.quotas[0].removals, sampling=material.sampling
        )
    except ValueError as error:
        fewer = "--members" if material.compare is None else "--candidates"
        raise UsageError(
            str(error), hint=f"give a larger `--pool`, fewer `{fewer}` or an earlier `--diverge-from`"
        ) from error
    return DrawnMasks(masks=material.of_heads(draws), options={"pool": pool}, seeded=True)


def _clusters(material: Material) -> DrawnMasks:
    (path, scores), sampling = material.scores[0], material.sampling
    if scores.clusters is None:
        raise UsageError(
            f"{path}: was made by `{scores.method}`, which makes no clusters of heads",
            hint="`--strategy clusters` needs scores by `--method cahp`",
        )
    try:
        masks = cluster_masks(
            clusters_of(scores), scores.tables, members=sampling.members, diverge_from=sampling.diverge_from
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint=TOO_ALIKE) from error
    return DrawnMasks(masks=masks, options={"keep": "auto", "clusters": len(scores.clusters)})


def _random(material: Material) -> DrawnMasks:
    quota, sampling = material.quotas[0], material.sampling
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
    draws = _sample(material)
    if material.compare is None:
        raise ValueError("`diverse` requires a comparison of candidates")
    check_weights(material.opened)
    choice = material.compare(material.scores[0][1], draws.masks)
    chosen = choice.report.chosen
    return replace(
        draws,
        masks=[draws.masks[candidate.draw] for candidate in chosen],
        options={**draws.options, **choice.options},
        member_options=[{"draw": c.draw, "objective_value": c.objective} for c in chosen],
        choice=choice,
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
    """Check the size of a pool: at least the number of removed heads, at most the heads of the model.

    Args:
        pool: Number of heads in the pool.
        quota: Number of heads to remove.
        total: Number of heads of the model.

    Raises:
        UsageError: If the pool is too large or too small.
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


def _in_groups(material: Material, budget: HeadBudget) -> Material:
    """Replace heads by groups of heads with shared keys.

    The importance of a group is the mean over its heads.

    Raises:
        UsageError: If heads share no keys, or a number of heads is not divisible by the size of a group.
    """
    towers = material.opened.header.architecture.towers
    group = max(towers[name].sharing for name in material.shape)
    if group == 1:
        raise UsageError(
            f"`--whole-groups`: each head of {material.opened.reference} has keys of its own",
            hint="leave it out",
        )

    def groups(option: str, count: int | None) -> int | None:
        if count is not None and count % group:
            raise UsageError(
                f"`{option} {count}`: is no number of whole groups, as {group} heads share keys",
                hint=f"for example `{option} {count + group - count % group}`",
            )
        return None if count is None else count // group

    in_all = replace(
        budget,
        keep_per_layer=groups("--keep", budget.keep_per_layer),
        remove=groups("--remove", budget.remove),
    )
    shape = {n: TowerShape(size.layers, size.num_heads // group) for n, size in material.shape.items()}
    return replace(
        material,
        sampling=replace(material.sampling, pool=groups("--pool", material.sampling.pool)),
        scores=[(path, _means(scores, group)) for path, scores in material.scores],
        shape=shape,
        quotas=(quota_of(in_all, shape),) * len(material.quotas),
        group=group,
    )


def _means(scores: HeadScores, group: int) -> HeadScores:
    """Return scores with the mean importance of each group of heads. A recorded removal order is dropped."""
    towers = {
        name: TowerScores(
            scores=tuple(
                tuple(fmean(row[i : i + group]) for i in range(0, len(row), group)) for row in table.scores
            )
        )
        for name, table in scores.towers.items()
    }
    return scores.model_copy(update={"towers": towers, "removals": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Masks of all members, and their provenance.

    Attributes:
        masks: Mask of each member.
        sources: Provenance entries of the files and data of each mask.
        remarks: Description of the number selected by `--keep auto`, a sentence for each scores file.
        diverse: Report of the strategy `diverse`; None for other strategies.
    """

    masks: tuple[HeadMask, ...]
    sources: tuple[tuple[InputFile, ...], ...]
    remarks: tuple[str, ...] = ()
    diverse: DiverseReport | None = None


def choose_masks(
    opened: OpenModel,
    scores: Sequence[tuple[Path, HeadScores]],
    strategy: Strategy,
    *,
    budget: HeadBudget | None,
    sampling: Sampling,
    compare: Compare | None = None,
) -> Chosen:
    """Select the mask of each member.

    Args:
        opened: The base.
        scores: Paths and content of the scores files; see `read_scores`.
        strategy: The strategy.
        budget: Number of heads to remove. None if the scores determine the number.
        sampling: Number of members, seed, pool, and first layer with differences. For `diverse`, these
            settings describe the candidates.
        compare: Selects the members of `diverse` among the candidates.

    Raises:
        UsageError: If budget, pool, members and strategy do not fit the model or the scores.
        DataError: If the data of `diverse` do not fit.
    """
    every = [scores_of_file for _, scores_of_file in scores]
    shape = _shape(opened, every, sampling.diverge_from)
    quotas: tuple[Quota, ...] = ()
    if strategy is not Strategy.CLUSTERS:
        quotas = (
            tuple(own_quota(path, scores_of_file, shape) for path, scores_of_file in scores)
            if budget is None
            else (quota_of(budget, shape),) * max(1, len(scores))
        )
    if sampling.pool is not None:
        check_pool(sampling.pool, quotas[0], total=total_heads(shape))
    material = Material(
        opened=opened, scores=scores, shape=shape, quotas=quotas, sampling=sampling, compare=compare
    )
    grouped = budget is not None and budget.whole_groups
    draws = STRATEGIES[strategy](_in_groups(material, budget) if budget and grouped else material)
    if budget is not None and any(s.clusters is not None for s in every):
        progress.warn("a budget selects heads by score only; `--keep auto` keeps one head of each cluster")
    remarks = [quota.remark for quota in quotas if quota.remark is not None]
    if any(quota.remark is not None and quota.removals == 0 for quota in quotas):
        progress.warn(
            "these scores remove no head, so the member equals the base; give a budget such as `--remove R`"
        )
    if strategy is Strategy.CLUSTERS:
        remarks = [own_quota(*scores[0], shape).remark or ""]
    unpruned_towers = {
        n: m for n, m in full_mask(opened.header.architecture.towers).items() if n not in shape
    }
    files = tuple(
        document_input(path, s.digest() if is_stream(path) else None, made_by=scores_step(s, opened))
        for path, s in scores
    )
    data = () if draws.choice is None else draws.choice.sources
    sources = tuple(
        (*(files[i : i + 1] if len(files) > 1 else files), *data) for i in range(len(draws.masks))
    )
    masks = []
    for i, mask in enumerate(draws.masks):
        used = i if len(scores) > 1 else 0
        options: dict[str, OptionValue] = {
            **(quotas[used].options if quotas else {}),
            "per_layer": bool(quotas and quotas[used].keep is not None) or None,
            "whole_groups": grouped or None,
            **draws.options,
            **(draws.member_options[i] if draws.member_options else {}),
            "diverge_from": sampling.diverge_from or None,
        }
        origin = MaskOrigin(
            strategy=strategy,
            method=every[used].method if every else None,
            scores=(every[used].digest(),) if every else (),
            budget={k: v for k, v in options.items() if v is not None},
            seed=sampling.seed if draws.seeded else None,
            member=i,
            tool=TOOL,
        )
        masks.append(
            HeadMask(
                towers={**unpruned_towers, **mask},
                architecture=opened.header.architecture.name,
                base=opened.checkpoint.digest,
                origin=origin,
                samples=samples_of(sources[i]),
            )
        )
    return Chosen(
        masks=tuple(masks),
        sources=sources,
        remarks=tuple(remarks),
        diverse=None if draws.choice is None else draws.choice.report,
    )


def _shape(opened: OpenModel, scores: Sequence[HeadScores], diverge_from: int) -> dict[str, TowerShape]:
    """Return the shape of the pruned towers: the towers of the scores, or all towers without scores."""
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
    if diverge_from > layers:
        raise UsageError(
            f"`--diverge-from {diverge_from}`: must be in 0..{layers}; the model has {counted(layers, 'layer')}",
            hint=f"with 0 members differ in every layer, with {layers} in none",
        )
    return shape


def read_masks(paths: Sequence[Path], opened: OpenModel) -> Chosen:
    """Read the mask of each member from a file.

    Raises:
        ManifestError: If a mask is malformed or belongs to another architecture.
    """
    masks = tuple(_read_mask(path, opened) for path in paths)
    sources = tuple(
        (document_input(path, mask.digest() if is_stream(path) else None),)
        for path, mask in zip(paths, masks, strict=True)
    )
    return Chosen(masks=masks, sources=sources)


def _read_mask(path: Path, opened: OpenModel) -> HeadMask:
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


def read_scores(path: Path, opened: OpenModel) -> HeadScores:
    """Read the head importances of a base from a scores file. Importances of other weights give a warning.

    Raises:
        ManifestError: If the file is malformed or belongs to another architecture.
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
