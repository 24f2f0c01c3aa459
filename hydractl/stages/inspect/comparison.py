"""What `inspect` finds when it compares choices of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hydractl.heads.masks import TowerMask


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
    mask: Mapping[str, TowerMask]
    standing: Mapping[str, tuple[tuple[float, ...], ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How alike two choices are; see `hydractl.heads.compare`.

    Attributes:
        overlap: In [0, 1].
        chance_overlap: What random choices would have.
        jaccard: In [0, 1].
        jsd_nats: In [0, ln 2]; None where one of them removes nothing.
        spearman: In [-1, 1]; None unless both are scores that rank anything.
        kendall: In [-1, 1]; as above.
    """

    overlap: float
    chance_overlap: float
    jaccard: float
    jsd_nats: float | None
    spearman: float | None
    kendall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two choices compared, over all heads and tower by tower."""

    first: str
    second: str
    overall: Agreement
    towers: Mapping[str, Agreement]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport:
    """Choices of heads and every pair of them; `plot` is the figure that was written."""

    choices: tuple[Choice, ...]
    pairs: tuple[Pair, ...]
    plot: Path | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files written."""
        return () if self.plot is None else (self.plot,)
