"""Files → choices of heads: what masks, checkpoints and scores say about which heads stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckpointError, InputError, ManifestError, UsageError
from hydractl.heads.masks import HeadId, TowerMask, shape_of, total_heads
from hydractl.heads.select import (
    COMMON_KEEP_FRACTION,
    Budget,
    best_mask,
    best_mask_per_layer,
    shape_of_scores,
)
from hydractl.manifest import HeadMask, HeadScores, Kind
from hydractl.progress import counted
from hydractl.stages.inspect.comparison import Choice, Cut
from hydractl.stages.inspect.opened import member_names, open_local
from hydractl.stages.shared.amount import cluster_mask, order_of, tables_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hydractl.heads.masks import Mask, Shape
    from hydractl.manifest import Document, Header, TowerKeep

    Tables = Mapping[str, Sequence[Sequence[float]]]

COMPARABLE = "scores, head masks and checkpoints of hydractl say which heads stay"


def read_choices(file: str, budget: Budget | None) -> tuple[list[tuple[Choice, Tables | None]], str | None]:
    """Return a file's choices of heads, each with its scores if it has any, and the architecture that it names.

    Args:
        file: Scores, a head mask or a checkpoint of ours; of a hydra each member is one choice.
        budget: What makes masks of scores; None for the scores' own.

    Raises:
        InputError: If it cannot be read, or says nothing about heads.
        UsageError: If the scores order fewer heads than the budget removes.
    """
    found, _ = open_local(file)
    if isinstance(found, Checkpoint):
        header = _header(file, found)
        return [(choice, None) for choice in _of_header(file, header)], header.architecture.name
    return _of_document(file, found, budget)


def shape_text(mask: Mask) -> str:
    """Return a shape as messages name it: `text 12x8 and vision 12x12`."""
    return " and ".join(f"{name} {t.layers}x{t.num_heads}" for name, t in sorted(shape_of(mask).items()))


def _of_document(
    file: str, found: Document, budget: Budget | None
) -> tuple[list[tuple[Choice, Tables | None]], str | None]:
    if isinstance(found, HeadMask):
        return [(_of_mask(file, "head-mask", found.towers), None)], found.architecture
    if not isinstance(found, HeadScores):
        raise ManifestError(f"{file}: is a {found.kind_of_file}, which chooses no heads", hint=COMPARABLE)
    if not found.towers:
        raise ManifestError(f"{file}: has scores of no tower", hint="score the model again")
    tables = tables_of(found)
    return [(_of_scores(file, found, tables, budget), tables)], found.architecture


def _header(file: str, checkpoint: Checkpoint) -> Header:
    header = checkpoint.header
    if header is None:
        raise CheckpointError(
            f"{file}: is no checkpoint of hydractl, so it does not say which heads it has", hint=COMPARABLE
        )
    return header


def _of_header(file: str, header: Header) -> list[Choice]:
    if header.kind != Kind.HYDRA:
        return [_of_mask(file, header.kind, header.masks[0])]
    return [
        _of_mask(f"{file}: {name}", header.kind, mask)
        for name, mask in zip(member_names(header), header.masks, strict=True)
    ]


def _of_mask(name: str, kind: str, towers: Mapping[str, TowerKeep]) -> Choice:
    mask = {n: TowerMask(num_heads=t.num_heads, keep=t.keep) for n, t in sorted(towers.items())}
    return Choice(
        name=name,
        kind=str(kind),
        heads=total_heads(shape_of(mask)),
        removed=sum(tower.removed for tower in mask.values()),
        mask=mask,
    )


def _of_scores(file: str, scores: HeadScores, tables: Tables, budget: Budget | None) -> Choice:
    from hydractl.heads.compare import standing  # noqa: PLC0415 - masks alone need no statistics

    shape = shape_of_scores(tables)
    order = order_of(file, scores, tables)
    if budget is None and scores.clusters is not None:
        cut, mask = Cut(option="--keep auto", source="recorded"), cluster_mask(Path(file), scores)
    else:
        cut, mask = _cut_mask(file, scores, budget, order, shape)
    return Choice(
        name=file,
        kind=scores.kind_of_file,
        method=scores.method,
        cut=cut,
        ranked=len(order),
        heads=total_heads(shape),
        removed=sum(part.removed for part in mask.values()),
        mask=mask,
        standing=standing(tables),
    )


def _cut_mask(
    file: str, scores: HeadScores, budget: Budget | None, order: Sequence[HeadId], shape: Shape
) -> tuple[Cut, dict[str, TowerMask]]:
    """Return the budget that makes a mask of scores, and the mask; of scores by layer each keeps equally many."""
    ordered = len(order)
    chosen, source = (budget, "asked") if budget else _own(scores, shape, ordered=ordered)
    if chosen.keep_per_layer is not None and scores.options.get("keep") is not None:
        chosen = replace(chosen, per_layer=True)
    try:
        removals = chosen.removals(shape)
    except ValueError as error:
        if source == "asked":
            raise UsageError(f"`{chosen.typed}`: {file}: {error}") from error
        raise ManifestError(
            f"{file}: options: {error}", hint="was the file edited? `--remove R` sets another budget"
        ) from error
    if removals > ordered:
        raise UsageError(
            f"{file}: orders {counted(ordered, 'head')} only, but `{chosen.typed}` removes {removals}",
            hint=f"give `--remove {ordered}` or less, or score again with `--remove {removals}` or more",
        )
    cut = Cut(option=chosen.typed, source=source)
    if chosen.per_layer and chosen.keep_per_layer is not None:
        return cut, best_mask_per_layer(order, shape, keep=chosen.keep_per_layer)
    return cut, best_mask(order, shape, removals=removals)


def _own(scores: HeadScores, shape: Shape, *, ordered: int) -> tuple[Budget, str]:
    """Return what a method found, or else the budget that it was given, or else the common one."""
    found = scores.options.get("kept", scores.results.get("open"))
    if _is_count(found) and found <= total_heads(shape):
        return Budget(remove=total_heads(shape) - found), "recorded"
    removals, keep = (scores.options.get(name) for name in ("removals", "keep"))
    if _is_count(removals) and removals < total_heads(shape):  # an order of all heads is no budget
        return Budget(remove=min(removals, ordered)), "recorded"
    if _is_count(keep):
        return Budget(keep_per_layer=keep), "recorded"
    common = Budget(keep_fraction=COMMON_KEEP_FRACTION)
    return (common if common.removals(shape) <= ordered else Budget(remove=ordered)), "default"


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_comparable(choices: Sequence[Choice]) -> None:
    """Refuse choices of models with other towers or other numbers of layers and heads.

    Raises:
        InputError: Naming both files and both shapes.
    """
    first = choices[0]
    for other in choices[1:]:
        if shape_of(other.mask) != shape_of(first.mask):
            raise InputError(
                f"{other.name}: is of {shape_text(other.mask)} heads, but {first.name} is of {shape_text(first.mask)}",
                hint="compare choices of heads of one model, scored with the same `--towers`",
            )
