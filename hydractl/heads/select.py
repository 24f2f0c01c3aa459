"""Which heads go: budgets, the order of removal, and the masks that follow from both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from hydractl.heads.masks import all_heads, check_order, drop_heads, full_mask, total_heads
from hydractl.manifest import HeadId, TowerKeep, TowerShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydractl.manifest import Shape, Tables

COMMON_KEEP_FRACTION = 2 / 3  # the paper's ImageNet members keep 8 of 12 heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many heads go. Exactly one of the three numbers is given.

    Attributes:
        keep_per_layer: Heads that a layer keeps, on average over all layers of all towers, at least 0.
        remove: Heads that go in all, at least 0.
        keep_fraction: Share of heads that stay in all, in (0, 1].
        per_layer: With `keep_per_layer`, every layer keeps exactly so many.

    Raises:
        ValueError: If not exactly one is given, one is out of its range, or `per_layer` has nothing to fix.
    """

    keep_per_layer: int | None = None
    remove: int | None = None
    keep_fraction: float | None = None
    per_layer: bool = False

    def __post_init__(self) -> None:
        given = [
            name for name in ("keep_per_layer", "remove", "keep_fraction") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"a budget is one of keep_per_layer, remove, keep_fraction, got {given or 'none'}"
            )
        if self.per_layer and self.keep_per_layer is None:
            raise ValueError(f"per_layer goes with keep_per_layer, not with {given[0]}")
        if self.keep_per_layer is not None and self.keep_per_layer < 0:
            raise ValueError(f"keep_per_layer must be at least 0, got {self.keep_per_layer}")
        if self.remove is not None and self.remove < 0:
            raise ValueError(f"remove must be at least 0, got {self.remove}")
        if self.keep_fraction is not None and not 0 < self.keep_fraction <= 1:
            raise ValueError(f"keep_fraction must lie in (0, 1], got {self.keep_fraction}")

    @property
    def typed(self) -> str:
        """The option that gives this budget, for messages."""
        if self.keep_per_layer is not None:
            return f"--keep {self.keep_per_layer}{' --per-layer' if self.per_layer else ''}"
        return f"--keep-fraction {self.keep_fraction:g}" if self.remove is None else f"--remove {self.remove}"

    def removals(self, towers: Shape) -> int:
        """Return how many heads go in all, over all towers.

        Removing all heads of a layer, or of the model, is allowed. `keep_fraction` F removes
        floor(total (1 - F) + 1/2) heads, F taken as the decimal it was written as, so halves round towards
        removing more on every machine.

        Args:
            towers: The model's shape.

        Raises:
            ValueError: If there are fewer heads than the budget removes or keeps.
        """
        total = total_heads(towers)
        if self.remove is not None:
            if self.remove > total:
                raise ValueError(f"cannot remove {self.remove} heads: the model has {total}")
            return self.remove
        if self.keep_fraction is not None:
            return math.floor(total * (1 - Fraction(str(self.keep_fraction))) + Fraction(1, 2))
        return total - self._keep(towers, total=total)

    def kept_a_layer(self, towers: Shape) -> int:
        """Return how many heads stay of each layer where all keep equally many: as near the budget as that goes.

        The mean number of heads that a layer keeps, rounded; a half goes to the even number.

        Args:
            towers: The model's shape.

        Raises:
            ValueError: As `removals`.
        """
        layers = sum(size.layers for size in towers.values())
        return round(Fraction(total_heads(towers) - self.removals(towers), layers))

    def _keep(self, towers: Shape, *, total: int) -> int:
        """Return how many heads stay in all under `keep_per_layer`."""
        keep = self.keep_per_layer or 0
        layers = sum(size.layers for size in towers.values())
        if keep * layers > total:
            raise ValueError(
                f"cannot keep {keep} heads a layer on average: {layers} layers have {total} heads, not {keep * layers}"
            )
        for tower, size in towers.items():
            if self.per_layer and keep > size.num_heads:
                raise ValueError(
                    f"cannot keep {keep} heads a layer: layers of tower `{tower}` have {size.num_heads}"
                )
        return keep * layers


def shape_of_scores(scores: Tables) -> dict[str, TowerShape]:
    """Return the shape of the model that per-tower L x H scores belong to.

    Raises:
        ValueError: If a tower is empty or its layers differ in their number of heads.
    """
    shape = {}
    for tower, rows in scores.items():
        widths = sorted({len(row) for row in rows})
        if len(widths) != 1 or widths[0] == 0:
            raise ValueError(
                f"scores of tower `{tower}` must be layers x heads, got rows of {widths or 'no'} heads"
            )
        shape[tower] = TowerShape(layers=len(rows), num_heads=widths[0])
    return shape


def removal_order(scores: Tables, recorded: Sequence[HeadId] | None = None) -> tuple[HeadId, ...]:
    """Return heads in the order in which they go.

    A recorded greedy order is taken as it is. Otherwise every head by ascending score over the whole model;
    of equal scores the lower (tower as ordered in `scores`, layer, head) goes first, which is also the first
    maximum that Algorithm 1 of the Hydra paper meets.

    Args:
        scores: For each tower L x H importances, finite, higher is kept.
        recorded: What a greedy method removed, first to last; may stop before all heads are gone.

    Raises:
        ValueError: If scores are ragged or not finite, or the recorded order has a head that the scores lack
            or one that comes twice.
    """
    shape = shape_of_scores(scores)
    if recorded is not None:
        order = tuple(HeadId(*head) for head in recorded)
        check_order(order, shape)
        return order
    heads = all_heads(shape)
    for head in heads:
        if not math.isfinite(scores[head.tower][head.layer][head.head]):
            raise ValueError(f"the score of {head} is not finite")
    return tuple(sorted(heads, key=lambda head: scores[head.tower][head.layer][head.head]))


def best_mask(order: Sequence[HeadId], shape: Shape, *, removals: int) -> dict[str, TowerKeep]:
    """Return the mask that removes the first heads of an order.

    Args:
        order: First to go first, as `removal_order` gives it.
        shape: The model's shape.
        removals: How many go, at least 0.

    Raises:
        ValueError: If the order is shorter than `removals`, or has a head that is not in the model or comes
            twice.
    """
    if not 0 <= removals <= len(order):
        raise ValueError(f"cannot remove {removals} heads: the removal order names {len(order)}")
    return drop_heads(full_mask(shape), order[:removals])


def best_mask_per_layer(order: Sequence[HeadId], shape: Shape, *, keep: int) -> dict[str, TowerKeep]:
    """Return the mask that keeps equally many heads in every layer: in each, the last ones of an order.

    Args:
        order: First to go first. One that stops early must still name enough heads of each layer.
        shape: The model's shape.
        keep: How many heads every layer keeps, at least 0.

    Raises:
        ValueError: If a layer has fewer heads than `keep`, the order names too few of its heads, or the order
            has a head that is not in the model or comes twice.
    """
    check_order(order, shape)
    chosen: list[HeadId] = []
    for tower, size in shape.items():
        if not 0 <= keep <= size.num_heads:
            raise ValueError(
                f"cannot keep {keep} heads a layer: layers of tower `{tower}` have {size.num_heads}"
            )
        surplus = size.num_heads - keep
        for layer in range(size.layers):
            named = [head for head in order if (head.tower, head.layer) == (tower, layer)]
            if len(named) < surplus:
                raise ValueError(
                    f"layer {layer} of tower `{tower}` must lose {surplus} heads to keep {keep}, "
                    f"but the removal order names {len(named)} of them"
                )
            chosen += named[:surplus]
    return drop_heads(full_mask(shape), chosen)
