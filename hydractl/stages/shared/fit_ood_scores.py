"""OOD scores of features, fitted for a model on training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from hydractl.families.load import OpenModel
from hydractl.fusion.feature_ood import WithOodScores
from hydractl.fusion.features import FeatureExtractor
from hydractl.metrics.ood_scores import MAHALANOBIS
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.shared.predictions import Predictor, PreparedData


class FitOn(NamedTuple):
    """Training data.

    Attributes:
        inputs: Of which this process has its batches.
        labels: Shape (N,), the model's classes.
        neighbours: Which nearest sample `knn` looks at.
    """

    inputs: PreparedData
    labels: Tensor
    neighbours: int


def fitted_beside(
    model: Predictor,
    opened: OpenModel,
    scores: Sequence[str],
    on: FitOn,
    team: ProcessGroup,
    progress: Progress,
) -> WithOodScores:
    """Return a model beside OOD scores that are fitted for it; the data goes through it once.

    Args:
        model: In evaluation mode.
        opened: What it was made of.
        scores: Names from `metrics.feature_scores.FITS`.
        on: The data.
        team: Who has the other batches.
        progress: Sees the batches pass.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on such data.
    """
    name = opened.reference
    with_scores = WithOodScores.fit(
        FeatureExtractor.of(model, opened.family, name=name),
        scores,
        (on.inputs.tracked(opened.header.preprocess, name, progress), on.labels),
        name=name,
        team=team,
        neighbours=on.neighbours,
    )
    if {*MAHALANOBIS} & {*scores} and len(on.labels) - len(on.labels.unique()) < with_scores.width:
        progress.warn(
            f"{name}: {len(on.labels)} samples to fit on leave the covariance of {with_scores.width} features singular: what "
            "they do not vary in does not count"
        )
    return with_scores
