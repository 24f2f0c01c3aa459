"""Which heads stay: scores and a budget, or masks written elsewhere, become one mask a member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydractl.errors import UsageError
from hydractl.heads.masks import shape_of
from hydractl.manifest import HeadMask, InputFile, MaskOrigin, TowerKeep
from hydractl.progress import counted
from hydractl.publish import is_stream
from hydractl.stages.prune.config import needs_pool
from hydractl.stages.prune.draw import STRATEGIES, Drawn, Task
from hydractl.stages.prune.inputs import given_mask, given_scores
from hydractl.stages.prune.strategy import Strategy
from hydractl.stages.shared.amount import Amount, amount_of, chosen_amount
from hydractl.stages.shared.lineage import TOOL, document_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydractl.families.opening import OpenModel
    from hydractl.heads.masks import Shape, TowerShape
    from hydractl.manifest import HeadScores, Option
    from hydractl.progress import Progress
    from hydractl.stages.prune.config import PruneConfig
    from hydractl.stages.prune.report import DiverseReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What members keep, and where that came from.

    Attributes:
        masks: One a member.
        sources: The files and data that each member's mask came from, as lineage names them.
        found: What `--keep auto` chose, in words.
        diverse: What `diverse` chose.
    """

    masks: tuple[HeadMask, ...]
    sources: tuple[tuple[InputFile, ...], ...]
    found: tuple[str, ...] = ()
    diverse: DiverseReport | None = None


def choose_masks(config: PruneConfig, opened: OpenModel, progress: Progress) -> Chosen:
    """Return each member's mask.

    Raises:
        ManifestError: If a scores or mask file is malformed or is for another architecture.
        UsageError: If budget, pool, members and strategy do not fit the model or the scores.
        DataError: If `diverse` is given data that do not fit.
    """
    if config.masks:
        return _given(config, opened, progress)
    scores = tuple(given_scores(path, opened, progress) for path in config.scores)
    strategy = _strategy(config, scores)
    shape = _shape(config, opened, scores)
    amounts = () if strategy is Strategy.CLUSTERS else _amounts(config, scores, shape)
    task = Task(config=config, opened=opened, scores=scores, shape=shape, amounts=amounts)
    drawn = STRATEGIES[strategy](task, progress)
    if config.budget is not None and any(s.clusters is not None for s in scores):
        progress.warn(
            "a budget takes these heads by their scores alone; `--keep auto` keeps one of each cluster"
        )
    found = [a.said for a in amounts if a.said is not None]
    if any(a.said is not None and a.removals == 0 for a in amounts):
        progress.warn(
            "by these scores no head goes: the member is the base; a budget such as `--remove R` removes some"
        )
    if strategy is Strategy.CLUSTERS:
        found = [chosen_amount(config.scores[0], scores[0], shape).said or ""]
    whole = task.whole()
    files = tuple(document_input(p, s.digest()) for p, s in zip(config.scores, scores, strict=True))
    return Chosen(
        masks=tuple(
            HeadMask(
                towers={
                    n: TowerKeep(num_heads=m.num_heads, keep=m.keep) for n, m in {**whole, **mask}.items()
                },
                architecture=opened.header.architecture.name,
                base=opened.checkpoint.digest,
                origin=_origin(task, strategy, drawn, member=i),
            )
            for i, mask in enumerate(drawn.masks)
        ),
        sources=tuple(
            (files[i : i + 1] if len(files) > 1 else files) + drawn.sources for i in range(len(drawn.masks))
        ),
        found=tuple(found),
        diverse=drawn.diverse,
    )


def _given(config: PruneConfig, opened: OpenModel, progress: Progress) -> Chosen:
    masks = tuple(given_mask(path, opened, progress) for path in config.masks)
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
            "the scores files are of different towers", hint="score all with the same `--towers`"
        )
    shape = {
        name: size
        for name, size in shape_of(opened.header.architecture.towers).items()
        if not scores or name in scores[0].towers
    }
    layers = max(size.layers for size in shape.values())
    if config.diverge_from > layers:
        raise UsageError(
            f"`--diverge-from {config.diverge_from}`: must lie in 0..{layers}; the model has {counted(layers, 'layer')}",
            hint=f"0 lets members differ everywhere, {layers} nowhere",
        )
    return shape


def _amounts(config: PruneConfig, scores: Sequence[HeadScores], shape: Shape) -> tuple[Amount, ...]:
    if config.budget is None:
        return tuple(chosen_amount(p, s, shape) for p, s in zip(config.scores, scores, strict=True))
    return (amount_of(config.budget, shape),) * max(1, len(scores))


def _origin(task: Task, strategy: Strategy, drawn: Drawn, *, member: int) -> MaskOrigin:
    config, own = task.config, member if len(task.scores) > 1 else 0
    options: dict[str, Option] = {
        **(task.amounts[own].options if task.amounts else {}),
        "per_layer": config.per_layer or None,
        **drawn.options,
        **(drawn.own[member] if drawn.own else {}),
        "diverge_from": config.diverge_from or None,
    }
    return MaskOrigin(
        strategy=strategy,
        method=task.scores[own].method if task.scores else None,
        scores=(task.scores[own].digest(),) if task.scores else (),
        budget={k: v for k, v in options.items() if v is not None},
        seed=config.seed if drawn.seeded else None,
        member=member,
        tool=TOOL,
    )
