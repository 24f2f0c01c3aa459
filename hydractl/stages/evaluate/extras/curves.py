"""`--curves`: what `hydractl report` draws of a row, besides its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hydractl.families.opening import OpenModel
from hydractl.manifest.curves import Origin
from hydractl.manifest.report import Row
from hydractl.manifest.scopes import ID_NAME
from hydractl.metrics.curves import curves_of
from hydractl.metrics.samples import Kept
from hydractl.stages.evaluate.config import EvalConfig


def with_curves(
    config: EvalConfig, row: Row, models: Sequence[OpenModel], found: Mapping[str, Kept], labels: Tensor
) -> Row:
    """Return a row with its curves, and which heads its models keep and what made them.

    Args:
        config: Of the run.
        row: As it was measured.
        models: What answers in it.
        found: What they say of each data set.
        labels: Of the ID set, (N,).
    """
    foreign = {data.name: found[data.name] for data in config.ood}
    curves = curves_of(found[ID_NAME], labels, foreign, config.scores[0])
    return row.model_copy(update={"curves": curves, "origins": tuple(map(_origin, models))})


def _origin(model: OpenModel) -> Origin:
    return Origin(name=model.as_input().name, masks=model.header.masks, made_by=model.header.made_by)
