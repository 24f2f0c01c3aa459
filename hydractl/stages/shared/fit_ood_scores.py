"""OOD scores of features, fitted for a model on training data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hydractl.data.encode import Reading
from hydractl.errors import DataError
from hydractl.fusion.feature_ood import WithOodScores
from hydractl.fusion.features import FeatureExtractor
from hydractl.metrics.ood_scores import ENERGY_DENSITY, options_of
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.shared.open_inputs import overlap
from hydractl.stages.shared.predictions import PreparedData


class FitOn(NamedTuple):
    """Training data.

    Attributes:
        inputs: Of which this process has its batches.
        labels: Shape (N,), the model's classes.
        how: How the model reads them.
        held_out: Held-out ID data, likewise; None where no score needs them.
    """

    inputs: PreparedData
    labels: Tensor
    how: Reading
    held_out: PreparedData | None = None


def overlap_of_val(val: np.ndarray, training: np.ndarray) -> str | None:
    """Return a warning if samples of `--val` are in `--fit`, given digests of their items as `DIGEST`; else None."""
    shared = overlap("--val", val, "--fit", training)
    return (
        shared
        and f"{shared}: `{ENERGY_DENSITY}` is standardized as if all inputs were as close as training data"
    )


def fitted_beside(
    extractor: FeatureExtractor,
    scores: Sequence[str],
    on: FitOn,
    team: ProcessGroup,
    progress: Progress,
    *,
    name: str,
) -> WithOodScores:
    """Return a model beside OOD scores that are fitted for it; the data goes through it once.

    Args:
        extractor: Of the model.
        scores: Names from `metrics.feature_scores.FITS`.
        on: The data.
        team: Who has the other batches.
        progress: Sees the batches pass.
        name: What messages call the model.

    Raises:
        DataError: If a score cannot be fitted on such data.
    """
    if on.labels.ndim > 1:
        raise DataError(
            f"{name}: feature-based OOD scores compare classes of inputs, which have one label each",
            hint="use OOD scores of logits, such as energy",
        )
    with_scores = WithOodScores.fit(
        extractor,
        scores,
        (on.inputs.tracked(on.how, name, progress), on.labels),
        () if on.held_out is None else on.held_out.tracked(on.how, name, progress),
        name=name,
        team=team,
    )
    for warning in _doubts(scores, on.labels, with_scores.width):
        progress.warn(f"{name}: {warning}")
    return with_scores


def _doubts(scores: Sequence[str], labels: Tensor, width: int) -> Iterator[str]:
    """Yield what training data are too few for."""
    fewest = int(labels.unique(return_counts=True)[1].min())
    for score in scores:
        options = options_of(score)
        if options.get("alpha") == 0 and len(labels) - len(labels.unique()) < width:
            yield (
                f"{len(labels)} samples to fit `{score}` on are too few for {width} features, so directions in "
                "which they do not vary are ignored"
            )
        if (options.get("k") or 0) > fewest:
            yield (
                f"`{score}` uses more neighbours than the {fewest} samples of a class, so it also measures "
                "distances to other classes"
            )
