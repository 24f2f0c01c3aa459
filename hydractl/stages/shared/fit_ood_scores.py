"""Feature-based OOD scores of a model: fitted on training data, or stored in its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from hydractl.data.batches import BatchShare
from hydractl.data.datasets import Items
from hydractl.errors import DataError
from hydractl.families.base import Family
from hydractl.families.load import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.feature_ood import Predictor, Scores, fit_scores
from hydractl.fusion.features import FeatureExtractor
from hydractl.metrics.ood_scores import ENERGY_DENSITY, options_of
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.shared.open_inputs import overlap
from hydractl.stages.shared.predictions import PreparedData


class FitOn(NamedTuple):
    """Training data.

    Attributes:
        inputs: The data, of which this process has its batches.
        labels: Shape (N,), the model's classes.
        held_out: Held-out ID data; None if no score needs them.
    """

    inputs: PreparedData
    labels: Tensor
    held_out: PreparedData | None = None


def inputs_of(items: Items, *, name: str, batch_size: int, team: ProcessGroup) -> PreparedData:
    """Return a data set that is read once."""
    deal = BatchShare(team.rank, team.world)
    return PreparedData(items, batch_size=batch_size, limit_bytes=0, name=name, deal=deal)


def overlap_of_val(val: np.ndarray, training: np.ndarray) -> str | None:
    """Return a warning if samples of `--val` are in `--fit`, given digests of their items as `DIGEST`; else None."""
    shared = overlap("--val", val, "--fit", training)
    return (
        shared
        and f"{shared}: `{ENERGY_DENSITY}` is standardized as if all inputs were as close as training data"
    )


def with_ood_scores(
    model: Towers,
    opened: OpenModel,
    scores: Sequence[str],
    on: FitOn | None,
    team: ProcessGroup,
    progress: Progress,
) -> Predictor:
    """Return a model with its feature-based OOD scores.

    Args:
        model: The model in evaluation mode, on its device.
        opened: Its checkpoint.
        scores: Names of the scores, which may be none.
        on: Training data to fit the scores on; None for the scores that the checkpoint stores.
        team: The processes.
        progress: Tracks the batches of this process.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
        CheckpointError: If stored scores are invalid.
    """
    predictor = Predictor(model=model, name=opened.reference, reads=opened.header.preprocess)
    if not scores:
        return predictor
    if on is None:
        fitted = Scores.stored(opened.checkpoint, opened.header, scores=scores, name=opened.reference)
    else:
        fitted = fit_on(predictor, opened.family, scores, on, team, progress)
    return predictor.with_scores(fitted, opened.family)


def fit_on(
    predictor: Predictor,
    family: Family,
    scores: Sequence[str],
    on: FitOn,
    team: ProcessGroup,
    progress: Progress,
) -> Scores:
    """Fit scores in one pass over the data; see `fit_scores`.

    Args:
        predictor: The model.
        family: Its family.
        scores: As in `fit_scores`.
        on: The data.
        team: The processes.
        progress: Tracks the batches of this process.

    Raises:
        UnsupportedModelError: If the model has no features.
        DataError: If a score cannot be fitted on these data.
    """
    name, reads = predictor.name, predictor.reads
    extractor = FeatureExtractor.of(predictor.model, family, name=name)
    if on.labels.ndim > 1:
        raise DataError(
            f"{name}: feature-based OOD scores compare classes of inputs, which have one label each",
            hint="use OOD scores of logits, such as energy",
        )
    batches, held_out = (
        () if inputs is None else inputs.tracked(reads, name, progress) for inputs in (on.inputs, on.held_out)
    )
    fitted = fit_scores(extractor, scores, (batches, on.labels), held_out, name=name, team=team)
    for warning in _doubts(scores, on.labels, extractor.width):
        progress.warn(f"{name}: {warning}")
    return fitted


def _doubts(scores: Sequence[str], labels: Tensor, width: int) -> Iterator[str]:
    """Yield warnings about scores that need more training data."""
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
