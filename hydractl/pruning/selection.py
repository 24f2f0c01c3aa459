"""Removal order, number of removed heads and mask of a scores file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydractl.errors import EDITED, ManifestError, UsageError
from hydractl.heads.budget import HeadBudget, find_knee, total_heads
from hydractl.heads.masks import best_mask, best_mask_per_layer, cluster_masks, removal_order, total_kept
from hydractl.manifest.document import OptionValue
from hydractl.manifest.head_mask import HeadId, HeadImportance, Shape, TowerKeep
from hydractl.messages import counted

SCORE_AGAIN = f"{EDITED}; score the model again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Number of heads to remove.

    Attributes:
        removals: Number of heads, summed over the towers with importances.
        option_text: Command-line option for the number, for messages.
        keep: Number of kept heads of every layer. None if layers may keep different numbers.
        options: Options recorded in the origin of masks.
        remark: Reason for the number determined by the scores, like `scores.json: keeps 9 heads of 36: their
            gates stayed open`. None if a budget was given.
    """

    removals: int
    option_text: str
    keep: int | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    remark: str | None = None


def quota_of(budget: HeadBudget, shape: Shape) -> Quota:
    """Convert a budget to a number of heads of a model.

    Args:
        budget: The budget.
        shape: Number of layers and heads of each pruned tower.

    Raises:
        UsageError: If the model has too few heads.
    """
    try:
        removals = budget.removals(shape)
    except ValueError as error:
        raise UsageError(
            f"`{budget.option_text}`: {error}",
            hint=f"give at most `--remove {total_heads(shape)}`"
            if budget.keep_per_layer is None
            else f"for example `--keep-heads {min(size.num_heads for size in shape.values())}`",
        ) from error
    options: dict[str, OptionValue] = {
        "keep_per_layer": budget.keep_per_layer,
        "remove": budget.remove,
        "keep_fraction": budget.keep_fraction,
    }
    return Quota(
        removals=removals,
        option_text=budget.option_text,
        keep=budget.keep_per_layer if budget.per_layer else None,
        options={name: value for name, value in options.items() if value is not None},
    )


def importance_quota(place: Path | str, importance: HeadImportance, shape: Shape) -> Quota:
    """Return the number of heads determined by a scoring method (`--keep-heads auto`).

    Methods with clusters keep a head per cluster, and at least a head in each layer. Methods with gates keep
    the heads with open gates. Greedy methods remove heads up to the knee of their objective; see `find_knee`.

    Args:
        place: Name of the scores file for messages.
        importance: Content of the scores file.
        shape: Shape of the pruned towers.

    Raises:
        UsageError: If the method determines no number, or its objective did not fall or has no knee.
        ManifestError: If the recorded number of open gates is not a number of heads.
    """
    total = total_heads(shape)
    if importance.clusters is not None:
        kept_heads = total_kept(_cluster_mask(importance))
        why = f"one of each of {counted(len(importance.clusters), 'cluster')}"
    elif importance.removals is not None and importance.baseline is not None:
        removals = _knee(place, importance, total)
        kept_heads, why = (
            total - removals,
            f"{_objective_name(importance)} drops after {counted(removals, 'removal')}",
        )
    elif "open" in importance.results:
        kept_heads, why = _open_gate_count(place, importance, total), "their gates stayed open"
    else:
        raise UsageError(
            f"`--keep-heads auto`: {place} was made by `{importance.method}`, which does not determine the number of heads",
            hint=(
                "use scores by cahp, l0, circuit or another greedy method, or give one of `--keep-heads N`, "
                "`--remove R`, `--keep-fraction F`"
            ),
        )
    return Quota(
        removals=total - kept_heads,
        option_text="--keep-heads auto",
        options={"keep": "auto", "remove": total - kept_heads},
        remark=f"{place}: keeps {counted(kept_heads, 'head')} of {total}: {why}",
    )


def order_of(importance: HeadImportance, towers: Iterable[str]) -> tuple[HeadId, ...]:
    """Return the heads of a scores file in the order of their removal.

    Args:
        importance: Head importances.
        towers: Towers to include. If importances are equal, heads of earlier towers are removed first.
    """
    recorded = importance.removals
    return removal_order(
        {name: importance.towers[name].scores for name in towers},
        None if recorded is None else [removal.id for removal in recorded],
    )


def mask_of(
    place: Path | str, importance: HeadImportance, shape: Shape, quota: Quota
) -> dict[str, TowerKeep]:
    """Return the mask of a scores file.

    If clusters determine the number of heads, the mask keeps the best head of each cluster and at least a
    head in each layer. Otherwise heads are removed in their order, equally many from each layer if
    `quota.keep` is given.

    Args:
        place: Name of the scores file for messages.
        importance: Content of the scores file.
        shape: Shape of the pruned towers. If importances are equal, heads of earlier towers are removed
            first.
        quota: Number of heads to remove.

    Raises:
        UsageError: If the removal order contains too few heads.
    """
    if quota.remark is not None and importance.clusters is not None:
        return _cluster_mask(importance)
    order = order_of(importance, shape)
    if quota.keep is None:
        check_long_enough(order, place, required=quota.removals, verb=f"`{quota.option_text}` removes")
        return best_mask(order, shape, removals=quota.removals)
    try:
        return best_mask_per_layer(order, shape, keep=quota.keep)
    except ValueError as error:
        hint = f"score again with `--remove {total_heads(shape)}`, which ranks all heads"
        raise UsageError(f"`--per-layer`: {error}", hint=hint) from error


def check_long_enough(order: Sequence[HeadId], place: Path | str, *, required: int, verb: str) -> None:
    """Check the length of a removal order; a greedy search may stop early.

    Raises:
        UsageError: If the order has fewer than `required` heads. `verb` precedes the number in the message.
    """
    if required > len(order):
        raise UsageError(
            f"{place}: ranks only {counted(len(order), 'head')}, but {verb} {required}",
            hint=f"score again with `--remove {required}` or more",
        )


def clusters_of(importance: HeadImportance) -> list[list[HeadId]]:
    """Return the recorded clusters of heads, each with its best head first; empty without clusters."""
    return [[head.id for head in cluster] for cluster in importance.clusters or ()]


def _cluster_mask(importance: HeadImportance) -> dict[str, TowerKeep]:
    return cluster_masks(clusters_of(importance), importance.tables, members=1)[0]


def _open_gate_count(place: Path | str, importance: HeadImportance, total: int) -> int:
    open_gates = importance.results["open"]
    if not isinstance(open_gates, int) or isinstance(open_gates, bool) or not 0 <= open_gates <= total:
        raise ManifestError(
            f"{place}: results.open is {open_gates!r}, but must be a number of heads in 0..{total}",
            hint=SCORE_AGAIN,
        )
    return open_gates


def _knee(place: Path | str, importance: HeadImportance, total: int) -> int:
    curve = [importance.baseline or 0.0, *(r.objective for r in importance.removals or ())]
    fall, last = find_knee(curve), len(curve) - 1
    if fall.knee is not None:
        return fall.knee
    name = _objective_name(importance)
    best = f"`--remove {fall.best}` gives the highest value, {curve[fall.best]:.4f}"
    if not fall.declines and last < total:
        raise UsageError(
            f"`--keep-heads auto`: {place} stops after {counted(last, 'removal')} with {name} {curve[-1]:.4f}, not below "
            f"the {curve[0]:.4f} of the whole model, so the drop is not yet reached",
            hint=f"score again with `--remove {min(total, max(2 * last, last + 1))}`; {best}",
        )
    raise UsageError(
        f"`--keep-heads auto`: {name} of {place} "
        + ("decreases without a knee" if fall.declines else "never drops below that of the whole model"),
        hint=best,
    )


def _objective_name(importance: HeadImportance) -> str:
    return "the objective" if importance.objective is None else f"`{importance.objective}`"


def ranks(importance: HeadImportance) -> dict[str, tuple[tuple[int | None, ...], ...]]:
    """Return the rank of each head among all heads of all towers, by tower and layer.

    The most important head has rank 1. The first head removed by `prune` has the last rank; if importances
    are equal, this is the head with the lowest tower, layer and number. For greedy methods, heads without a
    recorded removal have rank None.
    """
    total = sum(len(row) for table in importance.towers.values() for row in table.scores)
    rank: dict[tuple[str, int, int], int] = {
        head: total - i for i, head in enumerate(order_of(importance, importance.towers))
    }
    return {
        tower: tuple(
            tuple(rank.get((tower, layer, head)) for head in range(len(row)))
            for layer, row in enumerate(table.scores)
        )
        for tower, table in importance.towers.items()
    }
