"""How members come about: the strategies by name, and what each of them takes. Importing it loads little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

DEFAULT_CANDIDATES = 32


class Strategy(StrEnum):
    """Where several masks of one base come from."""

    BEST = "best"
    SAMPLE = "sample"
    OBJECTIVES = "objectives"
    CLUSTERS = "clusters"
    RANDOM = "random"
    DIVERSE = "diverse"


class Diversity(StrEnum):
    """What `diverse` maximises; see `hydractl.metrics.diversity`."""

    MI = "mi"
    DISAGREEMENT = "disagreement"
    NONE = "none"
    """Nothing: a control, in which the best draw is joined by the first ones that are good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a strategy does, and what it takes.

    Attributes:
        summary: What it does, for the help.
        scores: How many scores files, at least and at most; None for any number.
        pool: Whether a pool is needed; without need it has no effect.
        many: Whether `--members` says how many.
        per_layer: Whether layers can be given equally many heads.
        budget: Whether a number of heads can be given.
    """

    summary: str
    scores: tuple[int, int | None] = (1, 1)
    pool: bool = False
    many: bool = True
    per_layer: bool = False
    budget: bool = True


RULES: Mapping[Strategy, Rules] = MappingProxyType(
    {
        Strategy.BEST: Rules(summary="the heads with the highest scores", many=False, per_layer=True),
        Strategy.SAMPLE: Rules(summary="without random heads of the pool", pool=True),
        Strategy.OBJECTIVES: Rules(
            summary="one member per scores file", scores=(2, None), many=False, per_layer=True
        ),
        Strategy.CLUSTERS: Rules(
            summary="one head of each cluster, the j-th best for member j", budget=False
        ),
        Strategy.RANDOM: Rules(summary="random heads, a control", scores=(0, 0), per_layer=True),
        Strategy.DIVERSE: Rules(summary="the samples that disagree most on data", pool=True),
    }
)
