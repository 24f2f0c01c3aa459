"""How many heads go: as many as a budget says, or as the scores themselves do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydractl.errors import ManifestError, UsageError
from hydractl.heads.clusters import cluster_masks
from hydractl.heads.knee import fall_off
from hydractl.heads.masks import HeadId, total_heads
from hydractl.heads.select import removal_order
from hydractl.progress import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hydractl.heads.masks import Shape, TowerMask
    from hydractl.heads.select import Budget
    from hydractl.manifest import HeadScores, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How many heads go.

    Attributes:
        removals: In all, over the scored towers.
        typed: The option that says so, for messages.
        options: What a mask's origin records.
        said: What the scores chose, in words; None where a budget was given.
    """

    removals: int
    typed: str
    options: Mapping[str, Option] = field(default_factory=dict)
    said: str | None = None


def amount_of(budget: Budget, shape: Shape) -> Amount:
    """Return what a budget means to a model.

    Raises:
        UsageError: If the model has too few heads.
    """
    try:
        removals = budget.removals(shape)
    except ValueError as error:
        raise UsageError(f"`{budget.typed}`: {error}") from error
    options: dict[str, Option] = {
        "keep_per_layer": budget.keep_per_layer,
        "remove": budget.remove,
        "keep_fraction": budget.keep_fraction,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return Amount(removals=removals, typed=budget.typed, options=given)


def chosen_amount(path: Path, scores: HeadScores, shape: Shape) -> Amount:
    """Return how many heads go by what a method found out itself (`--keep auto`).

    Methods that group heads keep one a cluster, and one at least in each layer; those with gates keep the heads whose
    gates are open; greedy ones remove heads up to the knee of their objective, see `fall_off`.

    Raises:
        UsageError: If the method does not choose, or its objective has no knee or did not fall.
        ManifestError: If what it found is not a number of heads.
    """
    total = total_heads(shape)
    if scores.clusters is not None:
        mask = cluster_mask(path, scores)
        kept = sum(part.kept for part in mask.values())
        why = f"as many as one of each of {counted(len(scores.clusters), 'cluster')}"
    elif scores.removals is not None and scores.baseline is not None:
        removals = _knee(path, scores, total)
        kept, why = total - removals, f"{_named(scores)} falls off after {counted(removals, 'removal')}"
    elif "open" in scores.results:
        kept, why = _open(path, scores, total), "their gates are open"
    else:
        raise UsageError(
            f"`--keep auto`: {path} is by `{scores.method}`, which does not choose how many heads stay",
            hint="methods that do: cahp, l0, and circuit and other greedy ones; or give one of `--keep N`, `--remove R`, `--keep-fraction F`",
        )
    return Amount(
        removals=total - kept,
        typed="--keep auto",
        options={"keep": "auto", "remove": total - kept},
        said=f"{path}: {counted(kept, 'head')} of {total} stay: {why}",
    )


def cluster_mask(path: Path, scores: HeadScores) -> dict[str, TowerMask]:
    """Return the mask that keeps the best head of each cluster, and one head at least in each layer.

    Raises:
        ManifestError: If the clusters are not of the heads that have scores.
    """
    try:
        (mask,) = cluster_masks(clusters_of(scores), tables_of(scores), members=1)
    except ValueError as error:
        raise ManifestError(f"{path}: {error}", hint="was the file edited? score the model again") from error
    return mask


def clusters_of(scores: HeadScores) -> list[list[HeadId]]:
    """Return the groups of heads that a method recorded, each one's best head first."""
    return [[HeadId(h.tower, h.layer, h.head) for h in cluster] for cluster in scores.clusters or ()]


def order_of(where: Path | str, scores: HeadScores, towers: Iterable[str]) -> tuple[HeadId, ...]:
    """Return the heads of a scores file in the order in which they go; see `removal_order`.

    Args:
        where: What messages call the file.
        scores: What it holds.
        towers: Of equal scores those of the first tower go first.

    Raises:
        ManifestError: If the scores do not give an order.
    """
    recorded = scores.removals
    try:
        return removal_order(
            {name: scores.towers[name].scores for name in towers},
            None if recorded is None else [HeadId(r.tower, r.layer, r.head) for r in recorded],
        )
    except ValueError as error:
        raise ManifestError(f"{where}: {error}", hint="was the file edited? score the model again") from error


def tables_of(scores: HeadScores) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the scores (L x H) of each tower."""
    return {name: table.scores for name, table in sorted(scores.towers.items())}


def _open(path: Path, scores: HeadScores, total: int) -> int:
    found = scores.results["open"]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= total:
        raise ManifestError(
            f"{path}: results.open is {found!r}, not a number of heads in 0..{total}",
            hint="was the file edited? score the model again",
        )
    return found


def _knee(path: Path, scores: HeadScores, total: int) -> int:
    curve = [scores.baseline or 0.0, *(r.objective for r in scores.removals or ())]
    fall, last = fall_off(curve), len(curve) - 1
    if fall.knee is not None:
        return fall.knee
    name = _named(scores)
    best = f"`--remove {fall.best}` is where it is highest, {curve[fall.best]:.4f}"
    if not fall.fell and last < total:
        raise UsageError(
            f"`--keep auto`: {path} stops after {counted(last, 'removal')} with {name} at {curve[-1]:.4f}, not below "
            f"the {curve[0]:.4f} of the whole model, so it is not known where it falls off",
            hint=f"score again with `--remove {min(total, max(2 * last, last + 1))}`; {best}",
        )
    raise UsageError(
        f"`--keep auto`: {name} of {path} "
        + ("falls without a knee" if fall.fell else "never falls below that of the whole model"),
        hint=best,
    )


def _named(scores: HeadScores) -> str:
    return "the objective" if scores.objective is None else f"`{scores.objective}`"
