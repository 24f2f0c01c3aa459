"""What tells OOD samples beside logits: scores that are fitted for a row or held by its models, and which score is best on validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydractl.errors import UsageError
from hydractl.families.opening import OpenModel
from hydractl.fusion.detecting import Detecting, Scores
from hydractl.fusion.features import Watched
from hydractl.manifest.report import StoredScores, Value
from hydractl.metrics.measures import means, measure
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.samples import Kept
from hydractl.metrics.table import VAL
from hydractl.parallel import Team
from hydractl.progress import Progress
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import Loaded
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.shared.classes import Classes
from hydractl.stages.shared.fitting import FitOn, fitted_beside
from hydractl.stages.shared.predictions import Predictor

BY = "auroc"
"""What scores are compared by on validation data."""


def detecting(
    row: Loaded,
    opened: Sequence[OpenModel],
    data: EvalData,
    config: EvalConfig,
    team: Team,
    progress: Progress,
) -> tuple[Predictor | Detecting, ...]:
    """Return the models of a row beside the scores that are fitted for each, or that each holds; the models alone where there are none.

    Raises:
        UnsupportedModelError: If a model has no features.
        DataError: If a score cannot be fitted on such data.
        CheckpointError: If what a model holds is broken.
    """
    if not config.fitted:
        return row.models
    if data.fit is None:
        return tuple(
            Scores.stored(own.checkpoint, own.header, scores=config.fitted, name=own.reference).of(
                Watched.of(model, own.family, name=own.reference), name=own.reference
            )
            for model, own in zip(row.models, opened, strict=True)
        )
    on = FitOn(*data.fit, config.neighbours)
    return tuple(
        fitted_beside(model, own, config.fitted, on, team, progress)
        for model, own in zip(row.models, opened, strict=True)
    )


def as_stored(
    config: EvalConfig, opened: Sequence[OpenModel], beside: Sequence[Predictor | Detecting]
) -> tuple[StoredScores, ...]:
    """Return what a report says of the scores that a row's models hold; nothing where they are fitted, or there are none."""
    if config.fit is not None or not config.fitted:
        return ()
    return tuple(
        StoredScores(data=model.header.fitted.data, knn_k=own.scores.neighbours)
        for model, own in zip(opened, beside, strict=True)
        if isinstance(own, Detecting) and model.header.fitted is not None
    )


def check_held(
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
    for model in (model for row in opened for model in row):
        scores = model.header.fitted.scores if model.header.fitted else ()
        prompting = model.header.prompting
        if lacking := [score for score in config.fitted if score not in scores]:
            why = f"`{lacking[0]}` looks at features, and was never fitted for this model"
        elif (
            prompting
            and classes
            and (classes.names, classes.templates) != (model.header.labels, prompting.templates)
        ):
            why = "its OOD scores of features are for the classes that it stores"
        else:
            continue
        raise UsageError(
            f"{model.reference}: {why}",
            hint="add `--fit DATA`, the labelled data that the model was trained on",
        )


def validated(
    config: EvalConfig, found: Mapping[str, Kept]
) -> tuple[dict[str, dict[str, Value]], str | None]:
    """Return every score's AUROC on each validation OOD set, and the score with the highest mean, of equal ones the first."""
    if not config.ood_val:
        return {}, None
    sets = [d.name for d in config.ood_val]
    values = measure(
        found[VAL],
        None,
        {name: found[name] for name in sets},
        metrics=(BY,),
        scores=config.scores,
        resampling=Resampling(resamples=config.bootstrap, seed=config.seed),
    ).ood
    by_score = zip(config.scores, means(values, {VAL: sets})[VAL].values(), strict=True)
    return values, max(by_score, key=lambda pair: pair[1])[0]
