"""`--corrupt`: the ID set as corruptions leave it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from hydractl.data.corruptions.names import Corruption
from hydractl.data.inputs import with_corruption
from hydractl.manifest.document import ID_NAME
from hydractl.manifest.report import ALL_SEVERITIES, Shift
from hydractl.metrics.measures import measure
from hydractl.metrics.metric import Needs
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.samples import Kept
from hydractl.metrics.table import needing
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.shared.predictions import PreparedData, Scaling


def under_corruptions(
    config: EvalConfig,
    corruptions: Iterable[Corruption],
    data: EvalData,
    said: Callable[[PreparedData], Kept | None],
    scaling: Scaling,
) -> Shift | None:
    """Return what a row's numbers on labelled data become under each corruption; None without one, or in processes that do not lead.

    Args:
        config: Of the run.
        corruptions: Which; memory holds what is said of one.
        data: Whose ID set is corrupted.
        said: Has all processes run the row on a data set.
        scaling: Of the row's logits.
    """
    values: dict[str, dict[str, dict[str, float]]] = {}
    for corruption in corruptions:
        clean = data.inputs[ID_NAME]
        items = with_corruption(clean.dataset, corruption)
        found = said(clean.of(items, name=f"{corruption.name} {corruption.severity}"))
        if found is None:
            continue
        measured = measure(
            scaling(found),
            data.labels,
            {},
            metrics=needing(config.chosen, Needs.LABELS),
            scores=(),
            resampling=Resampling(resamples=0),
        ).values
        own = {name: value.value for name, value in measured.items()}
        values.setdefault(corruption.name, {})[str(corruption.severity)] = own
    return Shift(values=values, means=_means(values)) if values else None


def _means(values: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the mean over corruptions of every number, for each severity and over all that was measured."""
    cells = [(severity, own) for by_severity in values.values() for severity, own in by_severity.items()]
    groups = {each: [own for severity, own in cells if severity == each] for each in sorted(dict(cells))}
    groups[ALL_SEVERITIES] = [own for _, own in cells]
    return {
        name: {metric: math.fsum(own[metric] for own in group) / len(group) for metric in group[0]}
        for name, group in groups.items()
    }
