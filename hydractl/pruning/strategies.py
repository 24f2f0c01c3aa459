"""Strategies that select the heads of members. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Strategy(StrEnum):
    """Strategy that selects the heads of members."""

    BEST = "best"
    SAMPLE = "sample"
    OBJECTIVES = "objectives"
    CLUSTERS = "clusters"
    RANDOM = "random"
    DIVERSE = "diverse"


class Diversity(StrEnum):
    """Diversity maximized by the strategy `diverse`; see `hydractl.metrics.diversity`."""

    MI = "mi"
    DISAGREEMENT = "disagreement"
    NONE = "none"
    """Control without diversity: the best candidate and the first others with at least the median
    objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Options and summary of a strategy.

    Attributes:
        summary: Description for the help text.
        scores: Minimum and maximum number of scores files. A maximum of None means any number.
        pool: Whether `--pool` is required. If False, the option has no effect.
        has_members: Whether `--members` sets the number of members.
        per_layer: Whether `--per-layer` is supported.
        budget: Whether a budget can be given.
    """

    summary: str
    scores: tuple[int, int | None] = (1, 1)
    pool: bool = False
    has_members: bool = True
    per_layer: bool = False
    budget: bool = True


RULES: Mapping[Strategy, Rules] = MappingProxyType(
    {
        Strategy.BEST: Rules(summary="the heads with the highest scores", has_members=False, per_layer=True),
        Strategy.SAMPLE: Rules(summary="without random heads of the pool", pool=True),
        Strategy.OBJECTIVES: Rules(
            summary="one member per scores file", scores=(2, None), has_members=False, per_layer=True
        ),
        Strategy.CLUSTERS: Rules(
            summary="one head of each cluster, the j-th best for member j", budget=False
        ),
        Strategy.RANDOM: Rules(summary="random heads, a control", scores=(0, 0), per_layer=True),
        Strategy.DIVERSE: Rules(summary="the samples that disagree most on data", pool=True),
    }
)


IMPLIED = Rules(summary="as other options imply", scores=(0, None), per_layer=True)
