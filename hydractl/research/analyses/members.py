"""What members are worth: ensembles of every number of them (Hydra Ensembles, B.6, Table 10)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from hydractl.manifest.analyses import EnsembleSize, Spread
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.per_sample import Joined, StoredPredictions
from hydractl.research.analyses.predictions import measured
from hydractl.stages.evaluate.analyses.context import AnalysisContext

MOST = 20
"""Ensembles of a size that are measured; of more, so many are drawn."""


def analyse(context: AnalysisContext) -> tuple[EnsembleSize, ...]:
    """Return the numbers of ensembles of one member, of two, up to all: means over ensembles of a size.

    An ensemble answers as a row does, by the mean of its members' probabilities. There is no interval: ensembles of a size share
    members and samples.
    """
    if not context.predictions:
        return ()
    member_predictions = {
        name: tuple(predictions.members()) for name, predictions in context.predictions.items()
    }
    count = len(member_predictions[ID_NAME])
    return (
        tuple(_size(context, member_predictions, count, size) for size in range(1, count + 1))
        if count > 1
        else ()
    )


def _size(
    context: AnalysisContext,
    member_predictions: Mapping[str, Sequence[StoredPredictions]],
    count: int,
    size: int,
) -> EnsembleSize:
    values: list[dict[str, float]] = []
    groups: list[dict[str, dict[str, float]]] = []
    for chosen in subsets(count, size, seed=context.seed):
        predictions = {
            name: Joined(tuple(set_predictions[m] for m in chosen))
            for name, set_predictions in member_predictions.items()
        }
        numbers = measured(context, predictions)
        values.append(numbers.values)
        groups.append(numbers.means)
    return EnsembleSize(
        members=size,
        measured=len(values),
        possible=math.comb(count, size),
        values=_spreads(values),
        means={group: _spreads([group_means[group] for group_means in groups]) for group in groups[0]},
    )


def subsets(count: int, size: int, *, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield ensembles of a size, in order; where there are more than `MOST`, so many of them that are drawn."""
    if math.comb(count, size) <= MOST:
        yield from combinations(range(count), size)
        return
    draw = random.Random(f"members {seed} {count} {size}")  # noqa: S311 - no secret
    chosen: set[tuple[int, ...]] = set()
    while len(chosen) < MOST:
        chosen.add(tuple(sorted(draw.sample(range(count), size))))
    yield from sorted(chosen)


def _spreads(numbers: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    columns = {name: [ensemble_numbers[name] for ensemble_numbers in numbers] for name in numbers[0]}
    return {
        name: Spread(mean=math.fsum(column) / len(column), low=min(column), high=max(column))
        for name, column in columns.items()
    }
