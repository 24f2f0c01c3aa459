"""What models answer, and the numbers that follow, as those of rows do but without intervals."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hydractl.families.tower import Towers
from hydractl.fusion.inference import collected, responses
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.compute import means, measure
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import needing
from hydractl.metrics.resampling import Resampling
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow


class Numbers(NamedTuple):
    """On the ID set, and means over groups of OOD sets."""

    values: dict[str, float]
    means: dict[str, dict[str, float]]


def ask(context: AnalysisContext, part: ModelOfRow, model: Towers) -> dict[str, StoredPredictions]:
    """Return what a model says of the ID set and of each OOD set, in every process, with the temperatures of a model of the row.

    Args:
        context: The row.
        part: The model of the row that it reads as.
        model: On the row's device.
    """
    model.temperature = part.model.temperature
    predictions: dict[str, StoredPredictions] = {}
    for name in (ID_NAME, *context.sets):
        batches = responses(model, context.batches(part, name), name=part.opened.reference, data=name)
        predictions[name] = context.scaled(
            collected(
                context.team.iterate(batches), count=context.counts[name], folder=Path(tempfile.gettempdir())
            )
        )
    return predictions


def measured(context: AnalysisContext, predictions: Mapping[str, StoredPredictions]) -> Numbers:
    """Return the row's metrics of an ensemble that says this of the ID set and of each OOD set."""
    numbers = measure(
        predictions[ID_NAME],
        context.labels,
        {name: predictions[name] for name in context.sets},
        metrics=needing(context.metrics, MetricNeeds.LABELS, MetricNeeds.OOD, MetricNeeds.MEMBERS),
        scores=context.ranks,
        resampling=Resampling(resamples=0),
    )
    values = {name: value.value for name, value in numbers.values.items()}
    return Numbers(values, means(numbers.ood, context.ood))
