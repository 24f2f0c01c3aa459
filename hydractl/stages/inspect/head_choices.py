"""Files → choices of heads: what masks, checkpoints and scores say about which heads stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from hydractl.checkpoint import Checkpoint
from hydractl.errors import EDITED, CheckpointError, InputError, ManifestError
from hydractl.heads.budget import COMMON_KEEP_FRACTION, HeadBudget, total_heads
from hydractl.heads.masks import shape_of, shape_of_scores, total_kept
from hydractl.manifest.document import Document
from hydractl.manifest.head_mask import HeadMask, HeadScores, Mask, Shape, Tables
from hydractl.manifest.header import Header, Kind
from hydractl.reporting.lineage import member_names
from hydractl.stages.inspect.open_any import open_local
from hydractl.stages.shared.mask_selection import Quota, mask_of, order_of, own_quota, quota_of

COMPARABLE = "give scores, a head mask or a checkpoint of hydractl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The budget that made a mask of scores.

    Attributes:
        option: As one would type it.
        source: `asked`, `recorded` where the scores were made with it, or `default`.
    """

    option: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of heads: a mask, scores and the mask that they make, or a member's.

    Attributes:
        name: The file as the user named it; of a hydra also the member.
        kind: `scores`, `head-mask`, `base`, `member` or `hydra`.
        method: Of scores.
        cut: Of scores.
        ranked: How many heads the scores tell apart from those that were never removed; None for masks.
        heads: Of all towers.
        removed: Of all towers.
        mask: Kept heads of each tower.
        standing: Of scores: for each head the share of all heads that score no higher, in (0, 1].
    """

    name: str
    kind: str
    method: str | None = None
    cut: Cut | None = None
    ranked: int | None = None
    heads: int
    removed: int
    mask: Mask
    standing: Mapping[str, tuple[tuple[float, ...], ...]] | None = None


def read_choices(
    file: str, budget: HeadBudget | None
) -> tuple[list[tuple[Choice, Tables | None]], str | None]:
    """Return a file's choices of heads, each with its scores if it has any, and the architecture that it names.

    Args:
        file: Scores, a head mask or a checkpoint of ours; of a hydra each member is one choice.
        budget: What makes masks of scores; None for the scores' own.

    Raises:
        InputError: If it cannot be read, or says nothing about heads.
        UsageError: If the scores order fewer heads than the budget removes.
    """
    opened, _ = open_local(file)
    if isinstance(opened, Checkpoint):
        header = _header(file, opened)
        return [(choice, None) for choice in _of_header(file, header)], header.architecture.name
    return _of_document(file, opened, budget)


def shape_text(mask: Mask) -> str:
    """Return a shape as messages name it: `text 12x8 and vision 12x12`."""
    return " and ".join(f"{name} {t.layers}x{t.num_heads}" for name, t in sorted(shape_of(mask).items()))


def _of_document(
    file: str, document: Document, budget: HeadBudget | None
) -> tuple[list[tuple[Choice, Tables | None]], str | None]:
    if isinstance(document, HeadMask):
        return [(_of_mask(file, "head-mask", document.towers), None)], document.architecture
    if not isinstance(document, HeadScores):
        raise ManifestError(f"{file}: is a {document.kind_of_file}, which selects no heads", hint=COMPARABLE)
    if not document.towers:
        raise ManifestError(f"{file}: has no scores", hint="score the model again")
    return [(_of_scores(file, document, budget), document.tables)], document.architecture


def _header(file: str, checkpoint: Checkpoint) -> Header:
    header = checkpoint.header
    if header is None:
        raise CheckpointError(
            f"{file}: is not a checkpoint of hydractl, so its heads are unknown", hint=COMPARABLE
        )
    return header


def _of_header(file: str, header: Header) -> list[Choice]:
    if header.kind != Kind.HYDRA:
        return [_of_mask(file, header.kind, header.masks[0])]
    return [
        _of_mask(f"{file}: {name}", header.kind, mask)
        for name, mask in zip(member_names(header), header.masks, strict=True)
    ]


def _of_mask(name: str, kind: str, mask: Mask) -> Choice:
    return Choice(
        name=name,
        kind=str(kind),
        heads=total_heads(mask),
        removed=total_heads(mask) - total_kept(mask),
        mask=dict(sorted(mask.items())),
    )


def _of_scores(file: str, scores: HeadScores, budget: HeadBudget | None) -> Choice:
    """Return the choice that a budget makes of scores; of scores by layer each keeps equally many."""
    from hydractl.heads.compare import standing  # noqa: PLC0415 - masks alone need no statistics

    shape = shape_of_scores(scores.tables)
    order = order_of(file, scores, shape)
    if budget is not None:
        by_layer = budget.keep_per_layer is not None and scores.options.get("keep") is not None
        budget = replace(budget, per_layer=True) if by_layer else budget
        source, quota = "asked", quota_of(budget, shape, where=f"{file}: ")
    elif scores.clusters is not None:
        source, quota = "recorded", own_quota(file, scores, shape)
    else:
        source, quota = _recorded(file, scores, shape, ordered=len(order))
    mask = mask_of(file, scores, shape, quota, instead=f"give `--remove {len(order)}` or less, or ")
    return replace(
        _of_mask(file, scores.kind_of_file, mask),
        method=scores.method,
        cut=Cut(option=quota.option_text, source=source),
        ranked=len(order),
        standing=standing(scores.tables),
    )


def _recorded(file: str, scores: HeadScores, shape: Shape, *, ordered: int) -> tuple[str, Quota]:
    """Return what a method found, or else the budget that it was given, or else the common one, and which it is."""
    total = total_heads(shape)
    kept_heads = scores.options.get("kept", scores.results.get("open"))
    removals, keep = (scores.options.get(name) for name in ("removals", "keep"))
    if _is_count(kept_heads) and kept_heads <= total:
        return "recorded", quota_of(HeadBudget(remove=total - kept_heads), shape)
    if _is_count(removals) and removals < total:  # an order of all heads is no budget
        return "recorded", quota_of(HeadBudget(remove=min(removals, ordered)), shape)
    if _is_count(keep):
        budget = HeadBudget(keep_per_layer=keep, per_layer=True)
        try:
            budget.removals(shape)
        except ValueError as error:
            raise ManifestError(
                f"{file}: options: {error}", hint=f"{EDITED}; `--remove R` chooses another budget"
            ) from error
        return "recorded", quota_of(budget, shape)
    common = HeadBudget(keep_fraction=COMMON_KEEP_FRACTION)
    return "default", quota_of(
        common if common.removals(shape) <= ordered else HeadBudget(remove=ordered), shape
    )


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_comparable(choices: Sequence[Choice]) -> None:
    """Refuse choices of models with other towers or other numbers of layers and heads.

    Raises:
        InputError: Naming both files and both shapes.
    """
    first = choices[0]
    for choice in choices[1:]:
        if shape_of(choice.mask) != shape_of(first.mask):
            raise InputError(
                f"{choice.name}: is for {shape_text(choice.mask)} heads, but {first.name} is for "
                f"{shape_text(first.mask)}",
                hint="compare files for the same model and the same `--towers`",
            )
