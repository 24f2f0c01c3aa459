"""Masks of members: selected by head importances and a budget, or read from files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from hydractl import progress
from hydractl.errors import ManifestError, UsageError
from hydractl.families.finite import check_finite_weights
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
    share_first_layers,
    total_kept,
)
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import (
    HeadImportance,
    HeadMask,
    Mask,
    MaskOrigin,
    Shape,
    TowerImportance,
    TowerKeep,
    TowerShape,
)
from hydractl.manifest.header import InputFile, check_mask_fits, samples_of
from hydractl.messages import counted
from hydractl.output.publish import is_stream
from hydractl.provenance.output import TOOL, document_input, importance_step
from hydractl.pruning.diverse import DiverseChoice, DiverseReport
from hydractl.pruning.selection import (
    Quota,
    check_long_enough,
    clusters_of,
    importance_quota,
    mask_of,
    order_of,
    quota_of,
)
from hydractl.pruning.strategies import Strategy

TOO_ALIKE = "use fewer `--members`, or a smaller `--trunk`"
CandidateSelector = Callable[[HeadImportance, Sequence[Mask]], DiverseChoice]
"""Selects the members of `diverse` among candidates drawn from the pool of a scores file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInput:
    """Input of a strategy.

    Attributes:
        model_file: The base.
        importance: Paths and content of the scores files: no file, a single file, or a file for each member.
        shape: Number of layers and heads of each pruned tower.
        quotas: Number of heads to remove, for each scores file or for all members; empty if clusters
            determine the number.
        sampling: Settings for random masks.
        compare: Selects members among the drawn masks; only for `diverse`.
        group: Number of heads removed together.
    """

    model_file: OpenModel
    importance: Sequence[tuple[Path, HeadImportance]]
    shape: Shape
    quotas: tuple[Quota, ...]
    sampling: Sampling
    compare: CandidateSelector | None
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


def _best(material: StrategyInput) -> DrawnMasks:
    start = material.sampling.diverge_from
    masks = [
        _best_of(path, importance, material.shape, quota)
        for (path, importance), quota in zip(material.importance, material.quotas, strict=True)
    ]
    shared = share_first_layers(masks, start)
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


def _best_of(path: Path, importance: HeadImportance, shape: Shape, quota: Quota) -> dict[str, TowerKeep]:
    """Return the mask of one scores file. Warn if the importances do not fit the budget."""
    by_layer, budget_text = importance.options.get("keep"), f"`{quota.option_text}`"
    if by_layer is not None and quota.keep is None and quota.remark is None:
        progress.warn(
            f"{path}: `{importance.method}` scored layer by layer, so its scores are not comparable "
            f"between layers: `--keep-heads {by_layer} --per-layer` compares heads within each layer"
        )
    if quota.keep is not None and by_layer not in {None, quota.keep}:
        progress.warn(
            f"{path}: `{importance.method}` scored layers that each keep {by_layer} heads; score again with {budget_text}"
        )
    return mask_of(path, importance, shape, quota)


def _sample(material: StrategyInput) -> DrawnMasks:
    """Draw masks from the pool. For `diverse`, these masks are the candidates.

    Raises:
        UsageError: If the removal order is shorter than the pool, or gives too few distinct masks.
    """
    path, importance = material.importance[0]
    pool = material.sampling.pool or 0
    order = order_of(importance, material.shape)
    check_long_enough(order, path, required=pool, verb=f"`--pool {pool}` draws from")
    try:
        draws = sample_masks(
            order, material.shape, removals=material.quotas[0].removals, sampling=material.sampling
        )
    except ValueError as error:
        fewer = "--members" if material.compare is None else "--candidates"
        raise UsageError(
            str(error), hint=f"give a larger `--pool`, fewer `{fewer}` or a smaller `--trunk`"
        ) from error
    return DrawnMasks(masks=material.of_heads(draws), options={"pool": pool}, seeded=True)


def _clusters(material: StrategyInput) -> DrawnMasks:
    (path, importance), sampling = material.importance[0], material.sampling
    if importance.clusters is None:
        raise UsageError(
            f"{path}: was made by `{importance.method}`, which makes no clusters of heads",
            hint="`--strategy clusters` needs scores by `--method cahp`",
        )
    try:
        masks = cluster_masks(
            clusters_of(importance),
            importance.tables,
            members=sampling.members,
            diverge_from=sampling.diverge_from,
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint=TOO_ALIKE) from error
    return DrawnMasks(masks=masks, options={"keep": "auto", "clusters": len(importance.clusters)})


def _random(material: StrategyInput) -> DrawnMasks:
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


def _diverse(material: StrategyInput) -> DrawnMasks:
    draws = _sample(material)
    if material.compare is None:
        raise ValueError("`diverse` requires a comparison of candidates")
    check_finite_weights(material.model_file)
    choice = material.compare(material.importance[0][1], draws.masks)
    chosen = choice.report.chosen
    return replace(
        draws,
        masks=[draws.masks[candidate.draw] for candidate in chosen],
        options={**draws.options, **choice.options},
        member_options=[{"draw": c.draw, "objective_value": c.objective} for c in chosen],
        choice=choice,
    )


STRATEGIES: Mapping[Strategy, Callable[[StrategyInput], DrawnMasks]] = {
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


def _in_groups(material: StrategyInput, budget: HeadBudget) -> StrategyInput:
    """Replace heads by groups of heads with shared keys.

    The importance of a group is the mean over its heads.

    Raises:
        UsageError: If heads share no keys, or a number of heads is not divisible by the size of a group.
    """
    towers = material.model_file.header.architecture.towers
    group = max(towers[name].sharing for name in material.shape)
    if group == 1:
        raise UsageError(
            f"`--whole-groups`: each head of {material.model_file.reference} has keys of its own",
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
        keep_per_layer=groups("--keep-heads", budget.keep_per_layer),
        remove=groups("--remove", budget.remove),
    )
    shape = {n: TowerShape(size.layers, size.num_heads // group) for n, size in material.shape.items()}
    return replace(
        material,
        sampling=replace(material.sampling, pool=groups("--pool", material.sampling.pool)),
        importance=[(path, _means(importance, group)) for path, importance in material.importance],
        shape=shape,
        quotas=(quota_of(in_all, shape),) * len(material.quotas),
        group=group,
    )


def _means(importance: HeadImportance, group: int) -> HeadImportance:
    """Return scores with the mean importance of each group of heads. A recorded removal order is dropped."""
    towers = {
        name: TowerImportance(
            scores=tuple(
                tuple(fmean(row[i : i + group]) for i in range(0, len(row), group)) for row in table.scores
            )
        )
        for name, table in importance.towers.items()
    }
    return importance.model_copy(update={"towers": towers, "removals": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedMasks:
    """Masks of all members, and their provenance.

    Attributes:
        masks: Mask of each member.
        sources: Provenance entries of the files and data of each mask.
        remarks: Description of the number selected by `--keep-heads auto`, a sentence for each scores file.
        diverse: Report of the strategy `diverse`; None for other strategies.
    """

    masks: tuple[HeadMask, ...]
    sources: tuple[tuple[InputFile, ...], ...]
    remarks: tuple[str, ...] = ()
    diverse: DiverseReport | None = None


def choose_masks(
    model_file: OpenModel,
    importance: Sequence[tuple[Path, HeadImportance]],
    strategy: Strategy,
    *,
    budget: HeadBudget | None,
    sampling: Sampling,
    compare: CandidateSelector | None = None,
) -> SelectedMasks:
    """Select the mask of each member.

    Args:
        model_file: The base.
        importance: Paths and content of the scores files; see `read_importance`.
        strategy: The strategy.
        budget: Number of heads to remove. None if the scores determine the number.
        sampling: Number of members, seed, pool, and first layer with differences. For `diverse`, these
            settings describe the candidates.
        compare: Selects the members of `diverse` among the candidates.

    Raises:
        UsageError: If budget, pool, members and strategy do not fit the model or the scores.
        ManifestError: If the number of open gates in a scores file is no number of heads.
        DataError: If the data of `diverse` do not fit.
        CheckpointError: If a weight is NaN or infinite; checked for `diverse` only.
    """
    all_importance = [importance_of_file for _, importance_of_file in importance]
    shape = _shape(model_file, all_importance, sampling.diverge_from)
    quotas: tuple[Quota, ...] = ()
    if strategy is not Strategy.CLUSTERS:
        quotas = (
            tuple(
                importance_quota(path, importance_of_file, shape) for path, importance_of_file in importance
            )
            if budget is None
            else (quota_of(budget, shape),) * max(1, len(importance))
        )
    if sampling.pool is not None:
        check_pool(sampling.pool, quotas[0], total=total_heads(shape))
    material = StrategyInput(
        model_file=model_file,
        importance=importance,
        shape=shape,
        quotas=quotas,
        sampling=sampling,
        compare=compare,
    )
    grouped = budget is not None and budget.whole_groups
    draws = STRATEGIES[strategy](_in_groups(material, budget) if budget and grouped else material)
    if budget is not None and any(s.clusters is not None for s in all_importance):
        progress.warn(
            "a budget selects heads by score only; `--keep-heads auto` keeps one head of each cluster"
        )
    remarks = [quota.remark for quota in quotas if quota.remark is not None]
    if any(quota.remark is not None and quota.removals == 0 for quota in quotas):
        progress.warn(
            "these scores remove no head, so the member equals the base; give a budget such as `--remove R`"
        )
    if strategy is Strategy.CLUSTERS:
        remarks = [importance_quota(*importance[0], shape).remark or ""]
    unpruned_towers = {
        n: m for n, m in full_mask(model_file.header.architecture.towers).items() if n not in shape
    }
    files = tuple(
        document_input(path, s.digest() if is_stream(path) else None, made_by=importance_step(s, model_file))
        for path, s in importance
    )
    data = () if draws.choice is None else draws.choice.sources
    sources = tuple(
        (*(files[i : i + 1] if len(files) > 1 else files), *data) for i in range(len(draws.masks))
    )
    masks = []
    for i, mask in enumerate(draws.masks):
        used = i if len(importance) > 1 else 0
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
            method=all_importance[used].method if all_importance else None,
            scores=(all_importance[used].digest(),) if all_importance else (),
            budget={k: v for k, v in options.items() if v is not None},
            seed=sampling.seed if draws.seeded else None,
            member=i,
            tool=TOOL,
        )
        masks.append(
            HeadMask(
                towers={**unpruned_towers, **mask},
                architecture=model_file.header.architecture.name,
                base=model_file.checkpoint.digest,
                origin=origin,
                samples=samples_of(sources[i]),
            )
        )
    return SelectedMasks(
        masks=tuple(masks),
        sources=sources,
        remarks=tuple(remarks),
        diverse=None if draws.choice is None else draws.choice.report,
    )


def _shape(
    model_file: OpenModel, importance: Sequence[HeadImportance], diverge_from: int
) -> dict[str, TowerShape]:
    """Return the shape of the pruned towers: the towers of the scores, or all towers without scores.

    Raises:
        UsageError: If scores files have different towers, or `diverge_from` is too large.
    """
    if len({frozenset(s.towers) for s in importance}) > 1:
        raise UsageError(
            "the scores files are for different towers", hint="score all with the same `--towers`"
        )
    shape = {
        name: size
        for name, size in shape_of(model_file.header.architecture.towers).items()
        if not importance or name in importance[0].towers
    }
    layers = max(size.layers for size in shape.values())
    if diverge_from > layers:
        raise UsageError(
            f"`--trunk {diverge_from}`: must be in 0..{layers}; the model has {counted(layers, 'layer')}",
            hint=f"with 0 members differ in every layer, with {layers} in none",
        )
    return shape


def read_masks(paths: Sequence[Path], model_file: OpenModel) -> SelectedMasks:
    """Read the mask of each member from a file.

    Raises:
        ManifestError: If a mask is malformed or belongs to another architecture.
    """
    masks = tuple(_read_mask(path, model_file) for path in paths)
    sources = tuple(
        (document_input(path, mask.digest() if is_stream(path) else None),)
        for path, mask in zip(paths, masks, strict=True)
    )
    return SelectedMasks(masks=masks, sources=sources)


def _read_mask(path: Path, model_file: OpenModel) -> HeadMask:
    mask = HeadMask.read(path)
    name = model_file.header.architecture.name
    if mask.architecture is not None and untagged(mask.architecture) != untagged(name):
        raise ManifestError(
            f"{path}: architecture is `{mask.architecture}`, but {model_file.reference} is a `{name}`",
            hint="a mask without the key `architecture` fits any model of that shape",
        )
    try:
        check_mask_fits(mask.towers, model_file.header.architecture, place="towers")
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="the mask may be for another model") from error
    if mask.base is not None and mask.base != model_file.checkpoint.digest:
        progress.warn(
            f"{path}: was made for another base than {model_file.reference} (same architecture, different weights)"
        )
    return mask


def read_importance(path: Path, model_file: OpenModel) -> HeadImportance:
    """Read the head importances of a base from a scores file. Importances of other weights give a warning.

    Raises:
        ManifestError: If the file is malformed or belongs to another architecture.
    """
    importance = HeadImportance.read(path)
    name, towers = model_file.header.architecture.name, model_file.header.architecture.towers
    score_hint = f"score this model: `hydractl score {shlex.quote(model_file.reference)} --data VAL -o {shlex.quote(str(path))}`"
    for scored in sorted(importance.towers or towers):
        table, tower = importance.tables.get(scored, ()), towers.get(scored)
        if tower is None:
            raise ManifestError(
                f"{path}: towers has `{scored}`, but {model_file.reference} has {', '.join(towers)}",
                hint="the scores may be for another model",
            )
        layers, heads = len(table), len(table[0]) if table else 0
        if (layers, heads) != (tower.layers, tower.num_heads):
            raise ManifestError(
                f"{path}: towers.{scored}.scores is {layers} layers by {heads} heads, but "
                f"{model_file.reference} has {tower.layers} by {tower.num_heads}",
                hint=score_hint,
            )
    if untagged(importance.architecture) != untagged(name):
        raise ManifestError(
            f"{path}: architecture is `{importance.architecture}`, but {model_file.reference} is a `{name}`",
            hint=score_hint,
        )
    if importance.model.sha256 != model_file.checkpoint.digest:
        progress.warn(f"{path}: the scores are for other weights than those of {model_file.reference}")
    return importance
