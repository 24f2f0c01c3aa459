"""OOD scores of features, which are fitted for a row or stored by its models, and which score is best on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from hydractl.errors import UsageError
from hydractl.families.load import OpenModel
from hydractl.fusion.feature_ood import Scores, WithOodScores, default_score
from hydractl.fusion.features import FeatureExtractor
from hydractl.manifest.document import Value
from hydractl.manifest.report import StoredScores
from hydractl.metrics.compute import means, measure
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import VAL
from hydractl.metrics.resampling import Resampling
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import RowModels
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.selective_threshold import stores_other_classes
from hydractl.stages.shared.fit_ood_scores import FitOn, fitted_beside
from hydractl.stages.shared.predictions import Predictor
from hydractl.stages.shared.zero_shot_classes import NOTHING_NAMED, Classes

BY = "auroc"
"""Metric that selects a score on validation data."""


def with_ood_scores(
    row: RowModels,
    opened: Sequence[OpenModel],
    data: EvalData,
    config: EvalConfig,
    team: ProcessGroup,
    progress: Progress,
) -> tuple[Predictor | WithOodScores, ...]:
    """Return the models of a row beside the scores that are fitted for each, or that each holds; the models alone where there are none.

    Raises:
        UnsupportedModelError: If a model has no features.
        DataError: If a score cannot be fitted on such data.
        CheckpointError: If what a model holds is broken.
    """
    if not config.fitted:
        return row.models
    return tuple(
        _with_ood_scores(model, file, data, config, team, progress)
        for model, file in zip(row.models, opened, strict=True)
    )


def _with_ood_scores(
    model: Predictor,
    file: OpenModel,
    data: EvalData,
    config: EvalConfig,
    team: ProcessGroup,
    progress: Progress,
) -> WithOodScores:
    name = file.reference
    extractor = FeatureExtractor.of(model, file.family, name=name)
    if data.fit is not None:
        training = FitOn(*data.fit, file.header.preprocess, data.val)
        return fitted_beside(extractor, config.fitted, training, team, progress, name=name)
    scores = Scores.stored(file.checkpoint, file.header, scores=config.fitted, name=name)
    return scores.of(extractor, name=name)


def stored_scores(
    config: EvalConfig, opened: Sequence[OpenModel], models: Sequence[Predictor | WithOodScores]
) -> tuple[StoredScores, ...]:
    """Return what a report says of the scores that a row's models hold; nothing where they are fitted, or there are none."""
    if config.fit is not None or not config.fitted:
        return ()
    return tuple(
        StoredScores(data=file.header.fitted.data)
        for file, model in zip(opened, models, strict=True)
        if isinstance(model, WithOodScores) and file.header.fitted is not None
    )


def score_sizes(models: Sequence[Predictor | WithOodScores]) -> tuple[int, int]:
    """Return how many numbers the OOD scores of a row's models keep, and their multiply-accumulates for one sample."""
    fitted = [
        score
        for model in models
        if isinstance(model, WithOodScores)
        for member_scores in model.scores.fitted.values()
        for score in member_scores
    ]
    numbers = sum(tensor.numel() for score in fitted for tensor in score.tensors.values())
    return numbers, sum(score.multiplications for score in fitted)


def with_default_score(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> EvalConfig:
    """Return the configuration with `energy+density` beside `msp` where no scores are asked for and all models hold it."""
    is_settled = config.ood_score is not None or config.fit is not None or config.naming != NOTHING_NAMED
    rivals = any(row.is_derived for row in config.rows)
    all_hold = all(default_score(model.header) == ENERGY_DENSITY for model in chain.from_iterable(opened))
    if is_settled or rivals or not all_hold or not config.uses_scores:
        return config
    return replace(config, ood_score=(MSP, ENERGY_DENSITY))


def check_fitted_scores(
    config: EvalConfig, opened: Sequence[Sequence[OpenModel]], classes: Classes | None = None
) -> None:
    """Refuse scores of features that are neither fitted nor held by a model, for its classes.

    Args:
        config: What is measured.
        opened: The models of every row.
        classes: What zero-shot models are asked about; None where there are none, or that is not known yet.

    Raises:
        UsageError: If there are such.
    """
    if not config.fitted or config.fit is not None:
        return
    for model in chain.from_iterable(opened):
        fitted = model.header.fitted
        missing = [score for score in config.fitted if fitted is None or score not in fitted.scores]
        if missing:
            why = f"`{missing[0]}` is feature-based and was not fitted for this model"
        elif stores_other_classes(model, classes):
            why = "its feature-based OOD scores apply only to the classes that it stores"
        else:
            continue
        raise UsageError(
            f"{model.reference}: {why}",
            hint="add `--fit DATA`, the labelled data that the model was trained on",
        )


def best_on_validation(
    config: EvalConfig, predictions: Mapping[str, StoredPredictions]
) -> tuple[dict[str, dict[str, Value]], str | None]:
    """Return every score's AUROC on each validation OOD set, and the score with the highest mean, of equal ones the first."""
    if not config.ood_val:
        return {}, None
    sets = [d.name for d in config.ood_val]
    numbers = measure(
        predictions[VAL],
        None,
        {name: predictions[name] for name in sets},
        metrics=(BY,),
        scores=config.scores,
        resampling=Resampling(resamples=config.bootstrap, seed=config.seed),
    ).ood
    by_score = zip(config.scores, means(numbers, {VAL: sets})[VAL].values(), strict=True)
    return numbers, max(by_score, key=lambda pair: pair[1])[0]
