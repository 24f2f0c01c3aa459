"""The rows of the table: models of one row at a time are loaded, predict on every data set and are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hydractl.data.corruptions.names import Corruption
from hydractl.data.encode import with_corruption
from hydractl.families.load import OpenModel, fingerprint_of
from hydractl.fusion.build import load_any
from hydractl.fusion.feature_ood import Scores, WithOodScores
from hydractl.manifest.answers import ByClass, Examples
from hydractl.manifest.header import Header
from hydractl.manifest.prediction_sets import SetNumbers
from hydractl.manifest.report import Origin, Row
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.manifest.temperature import Temperature
from hydractl.metrics.by_class import by_class
from hydractl.metrics.compute import RowNumbers, ShiftNumbers, answered, means
from hydractl.metrics.curves import curves_of
from hydractl.metrics.measure_tasks import Selection, measure_all
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import needing
from hydractl.metrics.resampling import MetricEstimate, Resampling, present
from hydractl.progress import Progress
from hydractl.stages.evaluate.baseline_rows import derive
from hydractl.stages.evaluate.caveats import of_row, tuned_on_ood
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import RowModels, count_sizes, measure_latencies
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.extras.analyses import Analyst
from hydractl.stages.evaluate.extras.examples import examples_of
from hydractl.stages.evaluate.extras.prediction_sets import fit_sets, measure_sets, set_values
from hydractl.stages.evaluate.measure_ood import (
    best_on_validation,
    score_sizes,
    stored_scores,
    with_ood_scores,
)
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.stages.evaluate.selective_threshold import label_thresholds_of, threshold_of, why_lapses
from hydractl.stages.shared.predictions import (
    Keeping,
    NamedPredictor,
    Predictor,
    Scaling,
    fits,
    predict_together,
)
from hydractl.stages.shared.zero_shot_classes import settle


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What all rows are measured with.

    Attributes:
        config: Of the run, with the OOD scores that are measured.
        threshold_score: The one that thresholds are on.
        opened: The models of every row.
        data: The data sets.
        corruptions: Of the ID set.
        analyst: Runs the analyses of each row.
        device: Where models run.
        dtype: In which they run; None is each model's own.
        keeping: The processes that predict together, and where predictions wait.
        progress: Hears what begins.
    """

    config: EvalConfig
    threshold_score: str
    opened: Sequence[Sequence[OpenModel]]
    data: EvalData
    corruptions: Sequence[Corruption]
    analyst: Analyst
    device: torch.device
    dtype: torch.dtype | None
    keeping: Keeping
    progress: Progress

    @property
    def leads(self) -> bool:
        """Whether this process measures and writes."""
        return self.keeping.team.leads

    @property
    def resampling(self) -> Resampling:
        """The resamples of every interval: the same in all rows, on all data sets."""
        return Resampling(resamples=self.config.bootstrap, seed=self.config.seed)


@dataclass(kw_only=True)
class RowCollector:
    """What the process that leads has measured; empty in the others.

    Attributes:
        rows: The rows of the report.
        caveats: Why some numbers are less than they seem.
        predictions: By row and data set, for `--save-predictions`.
        first_numbers: Those of the first row, which each other row is compared with.
        examples: Inputs that the first row fails on.
        fitted_scores: The OOD scores that were fitted for the first model, for `--store`.
        loaded: The models of all rows if time is measured.
    """

    rows: list[Row] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    predictions: dict[str, Mapping[str, StoredPredictions]] = field(default_factory=dict)
    first_numbers: RowNumbers | None = None
    examples: Examples | None = None
    fitted_scores: Scores | None = None
    loaded: list[RowModels] = field(default_factory=list)


def measure_rows(run: Evaluation) -> RowCollector:
    """Measure one row after another, and at the end the time of all in turn."""
    table = RowCollector()
    for named, models in zip(run.config.rows, run.opened, strict=True):
        run.progress.step(f"Evaluating {named.name}")
        _add_row(table, run, named, models)
    if table.loaded:
        _add_latencies(table, run)
    return table


def _add_row(table: RowCollector, run: Evaluation, named: NamedModels, models: Sequence[OpenModel]) -> None:
    """Measure a row; unless time is measured, its models are freed at the end, before those of the next row are loaded."""
    config, data = run.config, run.data
    loaded, files, derived = derive(named, _load(run, models), models, data, run.progress)
    scored_models = with_ood_scores(loaded, files, data, config, run.keeping.team, run.progress)
    scaling, predictions = _predict(run, named.name, _row_models(scored_models, loaded, files), models)
    header = _header(run, models, scaling)
    shift = _measure_corrupted(run, _row_models(loaded.models, loaded, files), scaling, header)
    analyses = run.analyst.of(named, loaded, models, predictions, scaling)
    if not run.leads:
        return
    numbers = replace(_numbers(run, predictions, header), shift=shift)
    sizes = count_sizes(loaded, config.chosen, models, score_sizes(scored_models))
    sets = _sets(run, named.name, () if any(derived) else models, predictions[ID_NAME], scaling)
    values = scaling.values(_stored(models)) | set_values(config.chosen, sets) | sizes
    row = _row(run, named.name, models, predictions, numbers).model_copy(
        update={
            "values": numbers.values | values,
            "label_temperatures": header.label_temperatures,
            "entity_temperature": header.entity_temperature,
            "difference": None if table.first_numbers is None else table.first_numbers.difference(numbers),
            "derived": derived,
            "stored_scores": stored_scores(config, models, scored_models),
            "sets": sets,
            "analyses": analyses,
        }
    )
    for caveat in of_row(config, row, models, data.summary.identities):
        table.caveats.append(caveat)
        run.progress.warn(caveat)
    if table.first_numbers is None:
        table.first_numbers = numbers
        table.fitted_scores = _fitted_scores(run, scored_models)
    answers: Mapping[str, Tensor] = {}
    if config.curves or config.keep_examples:
        answers = present(answered(predictions[ID_NAME], data.summary.labels))
    if config.curves:
        like = table.rows[0].by_class if table.rows else None
        row = _with_curves(run, row, models, predictions, answers, like)
    if config.keep_examples and not table.rows:
        table.examples = examples_of(
            data.prepared(ID_NAME).dataset,
            predictions[ID_NAME],
            answers,
            data.summary.labels,
            data.class_names,
            most=config.keep_examples,
        )
    table.rows.append(row)
    if config.save_predictions is not None:
        table.predictions[named.name] = predictions
    if needing(config.chosen, MetricNeeds.TIME):
        table.loaded.append(loaded)


def _load(run: Evaluation, models: Sequence[OpenModel]) -> RowModels:
    """Load the models of a row, which are told the classes of the run."""
    hint = "use `--device cpu`, or `--no-latency` to keep only one row in memory"
    with fits(models[0].reference, run.device, hint=hint):
        loaded = tuple(load_any(m, dtype=run.dtype).to(run.device) for m in models)
    for model, opened in zip(loaded, models, strict=True):
        settle(model, opened, run.data.classes)
    return RowModels(models=loaded, preprocess=tuple(m.header.preprocess for m in models))


def _row_models(
    models: Sequence[Predictor | WithOodScores], loaded: RowModels, files: Sequence[OpenModel]
) -> list[NamedPredictor]:
    """Return models, or what stands for each, with how they read and what errors call them."""
    names = [file.reference for file in files]
    return [NamedPredictor(*model) for model in zip(models, loaded.preprocess, names, strict=True)]


def _predict(
    run: Evaluation, name: str, row: Sequence[NamedPredictor], models: Sequence[OpenModel]
) -> tuple[Scaling, dict[str, StoredPredictions]]:
    """Return the temperature of a row and its predictions on every data set, scaled; in processes that do not lead none."""
    data = run.data
    scaling = _scaling(run, name, row, models)
    predictions = {
        dataset: predict_together(row, inputs, run.keeping, progress=run.progress)
        for dataset, inputs in data.inputs.items()
    }
    data.validate()  # streams have passed
    return scaling, {
        dataset: scaling(responses) for dataset, responses in predictions.items() if responses is not None
    }


def _scaling(
    run: Evaluation, name: str, row: Sequence[NamedPredictor], models: Sequence[OpenModel]
) -> Scaling:
    """Return the temperature of a row: fitted on the held-out split, or the number of the configuration."""
    if run.data.temperature_data is not None:
        inputs, labels = run.data.temperature_data
        predictions = predict_together(row, inputs, run.keeping, progress=run.progress)
        if predictions is not None:
            header, stored = _header(run, models, Scaling()), _stored(models)
            return Scaling.fit(
                predictions, labels, row=name, progress=run.progress, header=header, stored=stored
            )
    number = run.config.given_temperature
    return Scaling(temperature=None if number is None else Temperature(number))


def _measure_corrupted(
    run: Evaluation, row: Sequence[NamedPredictor], scaling: Scaling, header: Header
) -> ShiftNumbers | None:
    """Return what a row's numbers on labelled data become under each corruption; None without one, or in processes that do not lead.

    Memory holds the predictions under one corruption, and of each metric a number a resample.
    """
    cells: dict[tuple[str, str], dict[str, MetricEstimate]] = {}
    metrics = needing(run.config.chosen, MetricNeeds.LABELS, MetricNeeds.TASK)
    for corruption in run.corruptions:
        clean = run.data.prepared(ID_NAME)
        corrupted = with_corruption(clean.dataset, corruption)
        inputs = clean.of(corrupted, name=f"{corruption.name} {corruption.severity}")
        predictions = predict_together(row, inputs, run.keeping, progress=run.progress)
        if predictions is None:
            continue
        cells[corruption.name, str(corruption.severity)] = measure_all(
            scaling(predictions),
            run.data.summary.labels,
            {},
            header,
            Selection(metrics, (), run.resampling),
        ).id_set
    return ShiftNumbers(cells=cells) if cells else None


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


def _numbers(run: Evaluation, predictions: Mapping[str, StoredPredictions], header: Header) -> RowNumbers:
    config = run.config
    numbers = measure_all(
        predictions[ID_NAME],
        run.data.summary.labels,
        {d.name: predictions[d.name] for d in config.ood},
        header,
        Selection(config.chosen, config.scores, run.resampling),
        queries=run.data.queries,
    )
    return replace(numbers, groups=config.groups)


def _row(
    run: Evaluation,
    name: str,
    models: Sequence[OpenModel],
    predictions: Mapping[str, StoredPredictions],
    numbers: RowNumbers,
) -> Row:
    """Return a row of what follows from predictions and headers."""
    config = run.config
    by_score, best = best_on_validation(config, predictions)
    ood, stored = numbers.ood, _stored(models)
    labels = run.data.summary.labels
    by_label = label_thresholds_of(config, predictions[ID_NAME], labels)
    return Row(
        name=name,
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
        shift=None if numbers.shift is None else numbers.shift.to_shift(),
        tuned_on_ood=tuned_on_ood(models),
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
    labels, tested = data.summary.labels, data.summary.fingerprints[ID_NAME]
    rule = fit_sets(config.set_options, predictions, labels, tested)
    if rule is None and len(models) == 1:
        rule = models[0].header.prediction_sets
        why = why_lapses(config, models[0], scaling.on_top_of(_stored(models)), data.classes)
        if rule and why:
            run.progress.warn(f"{name}: its prediction sets are not measured: they are not valid for {why}")
            return None
    return None if rule is None else measure_sets(rule, predictions, labels, data.class_names, tested)


def _stored(models: Sequence[OpenModel]) -> tuple[Temperature, ...]:
    return tuple(model.header.scale for model in models)


def _fitted_scores(run: Evaluation, models: Sequence[Predictor | WithOodScores]) -> Scores | None:
    """Return the OOD scores that were fitted for the first model of a row, if they are stored."""
    if run.config.store is None or run.config.fit is None:
        return None
    return next((model.scores for model in models if isinstance(model, WithOodScores)), None)


def _with_curves(
    run: Evaluation,
    row: Row,
    models: Sequence[OpenModel],
    predictions: Mapping[str, StoredPredictions],
    answers: Mapping[str, Tensor],
    like: ByClass | None,
) -> Row:
    """Return a row with its curves, its answers by class, and which heads its models keep and what made them."""
    config = run.config
    ood = {data.name: predictions[data.name] for data in config.ood}
    curves = curves_of(predictions[ID_NAME], answers, ood, config.scores[0])
    labels, architecture = run.data.summary.labels, run.opened[0][0].header.architecture
    classes = (
        None
        if architecture.task.by_label
        else by_class(answers["predicted"], labels[labels >= 0], run.data.class_names, like=like)
    )
    origins = tuple(
        Origin(name=model.as_input().name, masks=model.header.masks, made_by=model.header.made_by)
        for model in models
    )
    return row.model_copy(update={"curves": curves, "by_class": classes, "origins": origins})


def _add_latencies(table: RowCollector, run: Evaluation) -> None:
    latencies, caveats = measure_latencies(
        table.loaded,
        run.config.chosen,
        batch_size=run.config.batch_size,
        seed=run.config.seed,
        progress=run.progress,
    )
    table.rows = [
        row.model_copy(update={"values": row.values | times})
        for row, times in zip(table.rows, latencies, strict=True)
    ]
    table.caveats += caveats
