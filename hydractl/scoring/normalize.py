"""Normalization of scores over layers and towers. Pure functions of tables with one row of scores per layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hydractl.progress import Progress
from hydractl.scoring.job import ScoreJob

Tables: TypeAlias = "Mapping[str, Sequence[Sequence[float]]]"

TINY = 1e-20
"""Added to what scores are divided by, so that a layer whose scores are all zero keeps them (Michel's own code)."""


def normalized(tables: Tables, how: str) -> dict[str, list[list[float]]]:
    """Return scores divided by a positive number, which keeps the order within a layer.

    Args:
        tables: Scores of any sign, finite; rows may differ in length and may be empty.
        how: `none`: unchanged. `layer`: by the ℓ2 norm of the layer's scores (Michel et al. 2019; Molchanov et al. 2017),
            so that layers have equal weight. `tower`: by the root mean square of the tower's scores, so that towers with
            gradients of different scale are comparable.

    Raises:
        ValueError: If `how` is none of these.
    """
    if how == "none":
        return {tower: [list(row) for row in rows] for tower, rows in tables.items()}
    if how == "layer":
        return {tower: [_divided(row, math.hypot(*row)) for row in rows] for tower, rows in tables.items()}
    if how == "tower":
        return {
            tower: [
                _divided(row, math.hypot(*(x for r in rows for x in r)) / _count(rows) ** 0.5) for row in rows
            ]
            for tower, rows in tables.items()
        }
    raise ValueError(f"unknown normalization: {how}")


def min_max(tables: Tables) -> dict[str, list[list[float]]]:
    """Return scores min-max scaled to [0, 1] over all heads of all towers; if all are equal they become 0."""
    scores = [x for rows in tables.values() for row in rows for x in row]
    low, span = min(scores, default=0.0), max(scores, default=0.0) - min(scores, default=0.0)
    return {
        tower: [[(x - low) / span if span else 0.0 for x in row] for row in rows]
        for tower, rows in tables.items()
    }


def warn_of_unlike_towers(job: ScoreJob, how: str, progress: Progress) -> None:
    """Warn that scores of two towers are not comparable without normalization.

    Gradients and weights of CLIP's two encoders differ strongly in scale, so the paper prunes only the vision encoder
    (Hydra Ensembles, Fig. 7).
    """
    if len(job.scored) > 1 and how == "none":
        progress.warn(
            f"the scores of {' and '.join(job.scored)} differ in scale, but `prune` compares them: add "
            "`--normalize tower`, or score one tower with `--towers vision`"
        )


def _divided(row: Sequence[float], by: float) -> list[float]:
    return [x / (by + TINY) for x in row]


def _count(rows: Sequence[Sequence[float]]) -> int:
    return max(1, sum(map(len, rows)))
