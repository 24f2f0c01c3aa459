"""The rows of the table: models of one row at a time are loaded, predict on every data set and are measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl import progress
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel, fingerprint_of
from hydractl.fusion.hydra import load_any
from hydractl.manifest.document import Value
from hydractl.manifest.guarantees import Examples, SetNumbers
from hydractl.manifest.header import Header, Temperature
from hydractl.manifest.report import Origin, Row, StoredScores
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.compute import RowNumbers, Selection, answered, means, measure, measure_all
from hydractl.metrics.curves import by_class, curves_of
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import VAL, needing
from hydractl.metrics.resampling import Resampling, present
from hydractl.prediction.answers import predict_together
from hydractl.prediction.class_names import NOTHING_NAMED, Classes, settle
from hydractl.prediction.feature_ood import Predictor, Scores, default_score, with_ood_scores
from hydractl.prediction.inference import PreparedData, fits
from hydractl.prediction.scaling import Scaling
from hydractl.processes.distributed import ProcessGroup
from hydractl.stages.evaluate.caveats import of_row, tuned_on_ood
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import RowModels, count_sizes, measure_latencies
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.examples import examples_of
from hydractl.stages.evaluate.extension import RowMeasurer
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.stages.evaluate.selective_threshold import (
    fit_sets,
    label_thresholds_of,
    measure_sets,
    set_values,
    stores_other_classes,
    threshold_of,
    why_lapses,
)


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A run: models, data and settings of all rows, and the measurements of the process that leads.

    Attributes:
        config: Of the run, with the OOD scores that are measured.
        threshold_score: The one that thresholds are on.
        opened: The models of every row.
        data: The data sets.
        measurers: Measurements of plugins.
        device: Where models run.
        dtype: In which they run; None is each model's own.
        team: The processes.
        folder: Folder for predictions that are too large for memory.
        caveats: Warnings for the report about numbers of rows.
        rows: The rows of the report.
        predictions: By row and data set, for `--save-predictions`.
        first_numbers: Numbers of the first row, which each other row is compared with.
        examples: Inputs that the first row fails on.
        fitted_scores: The OOD scores that were fitted for the first model, for `--store`.
        loaded: The models of all rows if time is measured.
    """

    config: EvalConfig
    threshold_score: str
    opened: Sequence[Sequence[OpenModel]]
    data: EvalData
    measurers: Sequence[RowMeasurer]
    device: torch.device
    dtype: torch.dtype | None
    team: ProcessGroup
    folder: Path
    caveats: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    predictions: dict[str, Mapping[str, StoredPredictions]] = field(default_factory=dict)
    first_numbers: RowNumbers | None = None
    examples: Examples | None = None
    fitted_scores: Scores | None = None
    loaded: list[RowModels] = field(default_factory=list)

    def warn(self, caveats: Iterable[str]) -> None:
        """Show warnings, and add them to the report."""
        for caveat in caveats:
            self.caveats.append(caveat)
            progress.warn(caveat)

    def predict(self, row: Sequence[Predictor], inputs: PreparedData) -> StoredPredictions | None:
        """Return the predictions of a row in the process that leads, None in the others; see `predict_together`."""
        return predict_together(row, inputs, team=self.team, folder=self.folder)

    @property
    def resampling(self) -> Resampling:
        """The resamples of every interval: the same in all rows, on all data sets."""
        return Resampling(resamples=self.config.bootstrap, seed=self.config.seed)


class LoadedRow(NamedTuple):
    """A row while its models are loaded.

    Attributes:
        named: Its name and the references of its models.
        loaded: The models that answer.
        opened: The files of the models; several files may make one model that answers.
        predictors: The models that answer, without OOD scores.
        predictions: Scaled predictions on each data set; empty in processes that do not lead.
        scaling: Temperature of the row.
        header: Header of the first model with the classes of the run, and the row's thresholds and temperatures.
    """

    named: NamedModels
    loaded: RowModels
    opened: Sequence[OpenModel]
    predictors: Sequence[Predictor]
    predictions: Mapping[str, StoredPredictions]
    scaling: Scaling
    header: Header


def measure_rows(run: Evaluation) -> None:
    """Measure one row after another, and at the end the time of all in turn."""
    for measurer in run.measurers:
        measurer.open_data(run)
    for named, models in zip(run.config.rows, run.opened, strict=True):
        progress.step(f"Evaluating {named.name}")
        _add_row(run, named, models)
    if run.loaded:
        latencies = measure_latencies(
            run.loaded,
            run.config.chosen,
            batch_size=run.config.batch_size,
            seed=run.config.seed,
            warn=run.warn,
        )
        run.rows = [
            row.model_copy(update={"values": row.values | times})
            for row, times in zip(run.rows, latencies, strict=True)
        ]


def _add_row(run: Evaluation, named: NamedModels, models: Sequence[OpenModel]) -> None:
    """Measure a row; unless time is measured, its models are freed at the end, before those of the next row are loaded."""
    config, data = run.config, run.data
    loaded, files = _load(run, models), models
    for measurer in run.measurers:
        loaded, files = measurer.derive(run, named, loaded, files)
    predictors = [
        with_ood_scores(model, file, config.fitted, data.fit, run.team)
        for model, file in zip(loaded.models, files, strict=True)
    ]
    scaling = _scaling(run, named.name, predictors, models)
    predictions = {
        dataset: scaling(responses)
        for dataset, inputs in data.inputs.items()
        if (responses := run.predict(predictors, inputs)) is not None
    }
    header = _header(run, models, scaling)
    without_scores = [replace(predictor, scores=None, extractor=None) for predictor in predictors]
    loaded_row = LoadedRow(named, loaded, models, without_scores, predictions, scaling, header)
    additions = [measurer.measure(run, loaded_row) for measurer in run.measurers]
    if not run.team.leads:
        return
    numbers = measure_all(
        predictions[ID_NAME],
        data.labels,
        {d.name: predictions[d.name] for d in config.ood},
        header,
        Selection(config.chosen, config.scores, run.resampling),
        queries=data.queries,
    )
    numbers = replace(numbers, groups=config.groups)
    row = _row(run, named, models, predictions, scaling, numbers)
    sizes = count_sizes(loaded, config.chosen, models, score_sizes(predictors))
    values = scaling.values(_stored(models)) | set_values(config.chosen, row.sets) | sizes
    row = row.model_copy(
        update={
            "values": numbers.values | values,
            "label_temperatures": header.label_temperatures,
            "entity_temperature": header.entity_temperature,
            "difference": run.first_numbers and run.first_numbers.difference(numbers),
        }
    )
    row = reduce(lambda row, add: add(row), filter(None, additions), row)
    run.warn(of_row(config, row, models, data.identities))
    if not run.rows:
        run.first_numbers = numbers
        run.fitted_scores = predictors[0].scores if config.store and config.fit else None
    answers: Mapping[str, Tensor] = {}
    if config.curves or config.keep_examples:
        answers = present(answered(predictions[ID_NAME], data.labels))
    if config.curves:
        row = _with_curves(run, row, models, predictions, answers)
    if config.keep_examples and not run.rows:
        run.examples = examples_of(
            data.inputs[ID_NAME].dataset,
            predictions[ID_NAME],
            answers,
            data.labels,
            data.class_names,
            most=config.keep_examples,
        )
    run.rows.append(row)
    if config.save_predictions is not None:
        run.predictions[named.name] = predictions
    if needing(config.chosen, MetricNeeds.TIME):
        run.loaded.append(loaded)


def _load(run: Evaluation, models: Sequence[OpenModel]) -> RowModels:
    """Load the models of a row, which are told the classes of the run."""
    hint = "use `--device cpu`, or `--no-latency` to keep only one row in memory"
    with fits(models[0].reference, run.device, hint=hint):
        loaded = tuple(load_any(m, dtype=run.dtype).to(run.device) for m in models)
    for model, opened in zip(loaded, models, strict=True):
        settle(model, opened, run.data.classes)
    return RowModels(models=loaded, preprocess=tuple(m.header.preprocess for m in models))


def _scaling(run: Evaluation, name: str, row: Sequence[Predictor], models: Sequence[OpenModel]) -> Scaling:
    """Return the temperature of a row: fitted on the held-out split, or the number of the configuration."""
    if run.data.temperature_data is not None:
        inputs, labels = run.data.temperature_data
        predictions = run.predict(row, inputs)
        if predictions is not None:
            header, stored = _header(run, models, Scaling()), _stored(models)
            return Scaling.fit(predictions, labels, row=name, header=header, stored=stored)
    number = run.config.given_temperature
    return Scaling(temperature=None if number is None else Temperature(number))


def _label_thresholds(models: Sequence[OpenModel]) -> tuple[float, ...]:
    """Return the thresholds of labels that all models of a row store; none if they differ."""
    first, *others = {model.header.label_thresholds for model in models}
    return () if others else first


def _header(run: Evaluation, models: Sequence[OpenModel], scaling: Scaling) -> Header:
    """Return the header of the first model with the classes of the run, and a row's thresholds and temperatures."""
    update = {
        "labels": run.data.class_names,
        "label_thresholds": _label_thresholds(models),
        **scaling.on_top_of(_stored(models)).fields,
    }
    return run.opened[0][0].header.model_copy(update=update)


def _row(
    run: Evaluation,
    named: NamedModels,
    models: Sequence[OpenModel],
    predictions: Mapping[str, StoredPredictions],
    scaling: Scaling,
    numbers: RowNumbers,
) -> Row:
    """Return a row of numbers that follow from predictions and headers."""
    config = run.config
    by_score, best = best_on_validation(config, predictions)
    ood, stored = numbers.ood, _stored(models)
    labels = run.data.labels
    by_label = label_thresholds_of(config, predictions[ID_NAME], labels)
    return Row(
        name=named.name,
        models=tuple(fingerprint_of(m) for m in models),
        stored_temperatures=tuple(t.common for t in stored) if {*stored} != {Temperature()} else (),
        members=predictions[ID_NAME].shape[0],
        values=numbers.values,
        ood=ood,
        threshold=threshold_of(
            config,
            run.threshold_score,
            predictions[ID_NAME],
            labels,
            by_label or _label_thresholds(models),
            several=models[0].header.architecture.task.by_label,
        ),
        label_thresholds=by_label,
        means=means(ood, config.groups),
        mean_intervals=numbers.mean_intervals,
        ood_val=by_score,
        best_score=best,
        tuned_on_ood=tuned_on_ood(models),
        stored_scores=tuple(
            StoredScores(data=model.header.fitted.data)
            for model in models
            if config.fit is None and config.fitted and model.header.fitted is not None
        ),
        sets=_sets(run, named.name, () if named.is_derived else models, predictions[ID_NAME], scaling),
    )


def _sets(
    run: Evaluation,
    name: str,
    models: Sequence[OpenModel],
    predictions: StoredPredictions,
    scaling: Scaling,
) -> SetNumbers | None:
    """Return what the prediction sets of a row are like: those that are fitted, else those that the only one of its models stores."""
    config, data = run.config, run.data
    labels, tested = data.labels, data.fingerprints[ID_NAME]
    rule = fit_sets(config.set_options, predictions, labels, tested)
    if rule is None and len(models) == 1:
        rule = models[0].header.prediction_sets
        why = why_lapses(config, models[0], scaling.on_top_of(_stored(models)), data.classes)
        if rule and why:
            progress.warn(f"{name}: its prediction sets are not measured: they are not valid for {why}")
            return None
    return None if rule is None else measure_sets(rule, predictions, labels, data.class_names, tested)


def _stored(models: Sequence[OpenModel]) -> tuple[Temperature, ...]:
    return tuple(model.header.scale for model in models)


def _with_curves(
    run: Evaluation,
    row: Row,
    models: Sequence[OpenModel],
    predictions: Mapping[str, StoredPredictions],
    answers: Mapping[str, Tensor],
) -> Row:
    """Return a row with its curves, its answers by class, and which heads its models keep and what made them."""
    config = run.config
    ood = {data.name: predictions[data.name] for data in config.ood}
    curves = curves_of(predictions[ID_NAME], answers, ood, config.scores[0])
    labels, architecture = run.data.labels, run.opened[0][0].header.architecture
    classes = (
        None
        if architecture.task.by_label
        else by_class(
            answers["predicted"],
            labels[labels >= 0],
            run.data.class_names,
            like=run.rows[0].by_class if run.rows else None,
        )
    )
    origins = tuple(
        Origin(name=model.as_input().name, masks=model.header.masks, made_by=model.header.made_by)
        for model in models
    )
    return row.model_copy(update={"curves": curves, "by_class": classes, "origins": origins})


BY = "auroc"
"""Metric that selects a score on validation data."""


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
