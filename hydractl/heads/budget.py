"""How many heads go, as a user says it. Importing it loads no pydantic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydractl.manifest.head_mask import Shape

COMMON_KEEP_FRACTION = 2 / 3  # the paper's ImageNet members keep 8 of 12 heads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBudget:
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
        stated = [
            name for name in ("keep_per_layer", "remove", "keep_fraction") if getattr(self, name) is not None
        ]
        if len(stated) != 1:
            raise ValueError(
                f"a budget needs exactly one of keep_per_layer, remove, keep_fraction, got {stated or 'none'}"
            )
        if self.per_layer and self.keep_per_layer is None:
            raise ValueError(f"per_layer needs keep_per_layer, not {stated[0]}")
        for name in ("keep_per_layer", "remove"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.keep_fraction is not None and not 0 < self.keep_fraction <= 1:
            raise ValueError(f"keep_fraction must be in (0, 1], got {self.keep_fraction}")

    @property
    def option_text(self) -> str:
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
                f"cannot keep {keep} heads per layer on average: {layers} layers have {total} heads, not {keep * layers}"
            )
        for tower, size in towers.items():
            if self.per_layer and keep > size.num_heads:
                raise ValueError(
                    f"cannot keep {keep} heads per layer: layers of tower `{tower}` have {size.num_heads}"
                )
        return keep * layers


def total_heads(shape: Shape) -> int:
    """Return how many heads all towers have together."""
    return sum(size.layers * size.num_heads for size in shape.values())
