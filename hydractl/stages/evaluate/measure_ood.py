"""OOD scores of features, which are fitted for a row or stored by its models, and which score is best on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from hydractl.errors import UsageError
from hydractl.families.load import OpenModel
from hydractl.fusion.feature_ood import Predictor, default_score
from hydractl.manifest.report import StoredScores, Value
from hydractl.metrics.compute import means, measure
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import VAL
from hydractl.metrics.resampling import Resampling
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.selective_threshold import stores_other_classes
from hydractl.stages.shared.zero_shot_classes import NOTHING_NAMED, Classes

BY = "auroc"
"""Metric that selects a score on validation data."""


def stored_scores(config: EvalConfig, opened: Sequence[OpenModel]) -> tuple[StoredScores, ...]:
    """Return the report's record of the scores that a row's models store; empty if scores are fitted, or there are none."""
    if config.fit is not None or not config.fitted:
        return ()
    return tuple(
        StoredScores(data=file.header.fitted.data) for file in opened if file.header.fitted is not None
    )


def score_sizes(predictors: Sequence[Predictor]) -> tuple[int, int]:
    """Return the numbers that the OOD scores of a row's models store, and their multiply-accumulates for one sample."""
    fitted = [
        score
        for predictor in predictors
        if predictor.scores is not None
        for member_scores in predictor.scores.fitted.values()
        for score in member_scores
    ]
    numbers = sum(tensor.numel() for score in fitted for tensor in score.tensors.values())
    return numbers, sum(score.multiplications for score in fitted)


def with_default_score(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> EvalConfig:
    """Return the configuration with `energy+density` beside `msp` where no scores are asked for and all models hold it."""
    is_settled = config.ood_score is not None or config.fit is not None or config.naming != NOTHING_NAMED
    rivals = any(rival is not None for row in config.rows for _, rival in row.each())
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
