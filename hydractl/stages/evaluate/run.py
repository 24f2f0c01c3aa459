"""eval: measure accuracy, calibration, OOD detection, diversity and cost."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from pathlib import Path

import torch

from hydractl import progress
from hydractl.data.datasets import Dataset
from hydractl.data.open_dataset import open_items, open_readable
from hydractl.data.reference import DataRef
from hydractl.errors import CheckFailed, DataError, UsageError
from hydractl.evaluation import caveats
from hydractl.evaluation.cost import check_training_is_recorded, count_sizes, measure_latencies
from hydractl.evaluation.data import EvalData, check_metrics, check_one_question, check_same_task_and_classes
from hydractl.evaluation.guarantees import (
    check_stores,
    first_half,
    fit_known,
    fit_label_thresholds,
    fit_sets,
    fit_threshold,
    measure_sets,
    set_values,
    stored_guarantees,
    why_invalid,
    write_copy,
)
from hydractl.evaluation.options import THRESHOLD_OPTION, NamedModels, risk_text
from hydractl.evaluation.rows import (
    Evaluation,
    LoadedRow,
    RowMeasurer,
    accepted_answers,
    best_on_validation,
    check_fitted_scores,
    examples_of,
    header_of,
    scaling_of,
    stored_temperatures,
    with_curves,
    with_threshold_curve,
)
from hydractl.families.open_model import OpenModel, fingerprint_of
from hydractl.manifest.document import OptionValue
from hydractl.manifest.guarantees import Examples, SetNumbers
from hydractl.manifest.header import FittedScores, Header, samples_of
from hydractl.manifest.report import Line, Report, Row, StoredScores
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.messages import counted
from hydractl.metrics.compute import Measurement, RowNumbers, means, measure_all, sample_values
from hydractl.metrics.metric_spec import WHERE_PRESENT, MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, SCORES, VERSION, default_score, definition_of
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import FIT, METRICS, TEMPERATURE, VAL, needing
from hydractl.metrics.resampling import Resampling, without_nan
from hydractl.metrics.selective import fewest
from hydractl.output.publish import is_stream
from hydractl.prediction.class_names import NOTHING_NAMED
from hydractl.prediction.feature_ood import Predictor, Scores, with_ood_scores
from hydractl.prediction.open_inputs import open_reader
from hydractl.prediction.run_models import load_predictors, write_predictions
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import stage
from hydractl.provenance.command_config import config_digest, input_refs
from hydractl.provenance.output import Output, make_step
from hydractl.runtime import torch_dtype, versions
from hydractl.settings import Role
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Result of `eval`: the report, and the paths of all written files."""

    document: Report
    paths: tuple[Path, ...]
    config: EvalConfig

    def require_checks(self) -> None:
        """Raise an error if a condition holds or no threshold was found. Call after printing the report.

        Raises:
            CheckFailed: The message has the measured values.
        """
        config, row, checks = self.config, self.document.rows[0], self.document.checks
        if row.threshold is not None and row.threshold.below is None:
            stored = f"; {config.save_model} stores this for `predict`" if config.save_model else ""
            least = fewest(row.threshold.risk, config.chance)
            raise CheckFailed(
                f"`{THRESHOLD_OPTION} {risk_text(config.threshold_for)}`: {row.name}: {row.threshold.summary}{stored}",
                hint=(
                    "use more samples"
                    + f" (at least {least})" * (row.threshold.count < least)
                    + ", allow more risk, or try another `--ood-score`"
                ),
            )
        failed = [check for check in checks if check.failed]
        if failed:
            conditions = ", ".join(f"`{c.condition}` (measured {c.found:.6g})" for c in failed)
            raise CheckFailed(f"{len(failed)} of {len(checks)} checks failed for `{row.name}`: {conditions}")


@dataclass(slots=True, kw_only=True)
class Results:
    """Measurements of all rows, in the first process.

    Attributes:
        threshold_score: OOD score of the thresholds.
        rows: Rows of the report.
        first: Numbers of the first row, for the comparison with other rows.
        predictions: Predictions by row and data set, for `--save-predictions`.
        examples: Inputs of the first row with wrong predictions or disagreement of members; None if not
            collected.
        scores: OOD scores fitted for the first model, for `--save-model`; None if not needed.
        loaded: Models of all rows if latency is measured, else empty.
    """

    threshold_score: str
    rows: list[Row] = field(default_factory=list)
    first: RowNumbers | None = None
    predictions: dict[str, Mapping[str, StoredPredictions]] = field(default_factory=dict)
    examples: Examples | None = None
    scores: Scores | None = None
    loaded: list[Sequence[Predictor]] = field(default_factory=list)


@stage
def run_eval(config: EvalConfig) -> EvalReport:
    """Measure each row on each data set, and optionally write a report, predictions and a copy of the model.

    Models are loaded row by row. Only for latency, all models stay in memory. Processes of a launcher share
    the batches. The first process measures and writes the same bytes as a single process.

    Raises:
        InputError: If a model or a data set cannot be used, or the models have different classes.
        UsageError: If an option does not fit the models or the data.
        OutputExists: If an output already exists.
        Interrupted: If another process of the run ended unexpectedly.
    """
    device = answering_device(config.device)
    paths = [path for path in (config.save_predictions, config.out, config.save_model) if path is not None]
    with (
        start_team(device) as team,
        Output.claim(
            config, [config.out, config.save_predictions, config.save_model], writes=team.leads
        ) as output,
    ):
        original, model_files = config, _open_models(config, output)
        measurers = [m for extension in config.extensions if (m := extension.begin(config, model_files))]
        config = _with_default_score(config, model_files)
        run = _open_data(config, model_files, measurers, device, team)
        # A threshold on default scores uses the last of them: `energy+density` if all models store it.
        results = Results(threshold_score=config.scores[-1 if original.ood_score is None else 0])
        for measurer in measurers:
            measurer.open_data(run)
        for named, models in zip(run.named, run.model_files, strict=True):
            progress.step(f"Evaluating {named.name}")
            _measure_row(config, run, measurers, results, named, models)
        if results.loaded:
            _measure_time(config, run, results)
        if not team.leads:
            document = Report.from_json(team.broadcast(""), place="the report of rank 0")
        else:
            document = _document(config, run, results, measurers, config_digest(original))
            _write(original, config, run, results, document, output)
            # after the files, because the other processes end with this message
            team.broadcast(document.to_json())
    return EvalReport(document=document, paths=tuple(paths), config=original)


def _open_models(config: EvalConfig, output: Output) -> list[list[OpenModel]]:
    """Open the models of each row. Check options and models before data are opened."""
    model_files = [
        [
            open_reader(m, arch=config.arch if row == 0 else None, max_length=config.max_length)
            for m in named.models
        ]
        for row, named in enumerate(config.rows)
    ]
    models = [*chain.from_iterable(model_files)]
    _check_outputs(config, models, output)
    check_same_task_and_classes(models, names_classes=bool(config.naming.names))
    _check_task(config, models[0])
    return model_files


def _check_outputs(config: EvalConfig, models: Sequence[OpenModel], output: Output) -> None:
    for path, option in ((config.out, "-o"), (config.save_predictions, "--save-predictions")):
        output.check(
            path,
            models=models,
            data=[config.data, *config.others],
            files=[
                config.naming.file,
                *(Path(str(r.ref)) for r in input_refs(config) if r.role is Role.FILE),
            ],
            option=option,
        )
    output.check(config.save_model, models=models, option="--save-model", folders=True)


def _check_task(config: EvalConfig, first: OpenModel) -> None:
    """Check that all options are defined for the task of the models.

    Raises:
        UsageError: If an option is not defined.
    """
    task = first.header.architecture.task
    if config.label_thresholds and not task.by_label:
        raise UsageError(
            f"`--label-thresholds`: {first.reference} answers {task.labels}, the most probable one",
            hint="leave it out; for a threshold of the OOD score add `--threshold-for 'risk<=0.05'`",
        )
    options = {
        "--train": config.train is not None,
        f"--ood-score {''.join(config.fitted[:1])}": bool(config.fitted),
        "--keep-examples": config.keep_examples > 0,
        "--sets": config.set_options.sets is not None,
    }
    check_one_question(options, first)


def _with_default_score(config: EvalConfig, model_files: Sequence[Sequence[OpenModel]]) -> EvalConfig:
    """Add `energy+density` to the OOD scores if no scores are given and all models store it."""
    is_settled = config.ood_score is not None or config.train is not None or config.naming != NOTHING_NAMED
    derived = any(row.is_derived for row in config.rows)
    all_store = all(
        default_score(model.header) == ENERGY_DENSITY for model in chain.from_iterable(model_files)
    )
    if not (is_settled or derived) and all_store and config.uses_stored_scores:
        return replace(config, ood_score=(MSP, ENERGY_DENSITY))
    has_one_question = model_files[0][0].header.architecture.task.has_one_question
    if config.scores == (MSP,) and config.ood_score is None and config.ood and has_one_question:
        progress.step(f"the only OOD score is `{MSP}`; `--train TRAIN --val VAL` adds `{ENERGY_DENSITY}`")
    return config


def _open_data(
    config: EvalConfig,
    model_files: Sequence[Sequence[OpenModel]],
    measurers: Sequence[RowMeasurer],
    device: torch.device,
    team: ProcessGroup,
) -> Evaluation:
    """Open the data. Check that data, models and options fit together before a model is loaded."""
    first, models = model_files[0][0], [*chain.from_iterable(model_files)]
    stored_scores = config.fitted if config.train is None else ()
    explicit = config.chosen if config.metrics else ()
    check_fitted_scores(stored_scores, model_files)
    check_training_is_recorded(config.rows, model_files, config.metrics or (), config.fail_if)
    unfair = []
    if config.temperature_data is None:
        unfair = [
            *caveats.temperature_warnings([row.name for row in config.rows], model_files, config.chosen)
        ]
    for caveat in unfair:
        progress.warn(caveat)
    config.check_conditions([scope for measurer in measurers for scope in measurer.scopes], config.scores)
    refs: dict[str, DataRef | None] = {
        ID_NAME: config.data,
        **{d.name: d.ref for d in config.ood + config.ood_val},
        TEMPERATURE: config.temperature_data,
        FIT: config.train,
        VAL: config.val,
    }
    preprocess = first.header.preprocess

    def open_set(ref: DataRef, skipped: list[str]) -> Dataset:
        """Open a data set. With `--skip-bad`, leave out unreadable images and append their number to `skipped`."""
        if not config.skip_bad:
            return open_items(ref, preprocess, workers=config.num_workers)
        dataset, caveat = open_readable(ref, preprocess, workers=config.num_workers)
        skipped += [caveat] if caveat else []
        return dataset

    data = EvalData.open(
        {name: ref for name, ref in refs.items() if ref is not None},
        open_set,
        models,
        config.naming,
        team,
        batch_size=config.batch_size,
    )
    # use the disk of the first output file, because it needs space for the outputs anyway
    written = filter(None, (config.out, config.save_predictions, config.save_model))
    file = next((path for path in written if not is_stream(path)), None)
    run = Evaluation(
        named=config.rows,
        model_files=model_files,
        data=data,
        measurement=Measurement(
            config.chosen,
            config.scores,
            Resampling(resamples=config.bootstrap, seed=config.seed),
            config.groups,
            tuple(d.name for d in config.ood_val),
        ),
        open_data=open_set,
        device=device,
        team=team,
        folder=Path(tempfile.gettempdir()) if file is None else file.resolve().parent,
        caveats=unfair,
    )
    has_sets = config.set_options.sets is not None or first.header.prediction_sets is not None
    check_metrics(
        [*explicit, *(condition.metric for condition in config.fail_if)],
        first,
        has_sets=has_sets,
        has_queries=data.queries is not None,
    )
    run.warn((*data.skipped, *caveats.data_warnings(run.measurement, data.identities, config.guaranteed)))
    caveats.check_validation_is_not_test(run.measurement, data.identities)
    if config.set_options.rule:
        caveats.check_set_sample_count(config.set_options.rule, data.labels, data.class_names)
    if config.save_model:
        check_stores(first, data.classes)
    check_fitted_scores(stored_scores, model_files, data.classes)
    return run


def _measure_row(
    config: EvalConfig,
    run: Evaluation,
    measurers: Sequence[RowMeasurer],
    results: Results,
    named: NamedModels,
    model_files: Sequence[OpenModel],
) -> None:
    """Measure a row. Without latency, its models are freed before the next row is loaded."""
    data, measurement = run.data, run.measurement
    dtype = None if config.dtype is None else torch_dtype(config.dtype)
    predictors: Sequence[Predictor] = load_predictors(
        model_files,
        device=run.device,
        dtype=dtype,
        classes=data.classes,
        hint="use `--device cpu`, or `--no-latency` to keep only one row in memory",
    )
    for measurer in measurers:
        predictors = measurer.derive(run, named, predictors, model_files)
    without_scores = predictors
    if config.fitted:
        fit_on = data.fit_on(standardized=config.standardized_on is not None)
        predictors = [
            with_ood_scores(predictor, model, config.fitted, fit_on, run.team)
            for predictor, model in zip(predictors, model_files, strict=True)
        ]
    scaling = scaling_of(run, named.name, predictors, model_files, config.given_temperature)
    predictions = {
        name: scaling(responses)
        for name in (*measurement.tested, *measurement.ood_val, *(VAL,) * bool(measurement.ood_val))
        if (responses := run.predict(predictors, data.inputs[name])) is not None
    }
    header = header_of(run, model_files, scaling)
    loaded = LoadedRow(named, model_files, without_scores, predictions, scaling, header)
    additions = [measurer.measure(run, loaded) for measurer in measurers]
    if not run.team.leads:
        return
    ood = {name: predictions[name] for name in measurement.ood}
    numbers = measure_all(predictions[ID_NAME], data.labels, ood, header, measurement, queries=data.queries)
    row, curve = _row(config, run, results, loaded, numbers)
    values = scaling.values(stored_temperatures(model_files)) | set_values(config.chosen, row.sets)
    row = row.model_copy(
        update={
            "values": numbers.values | values | count_sizes(predictors, config.chosen, model_files),
            "difference": results.first and results.first.difference(numbers),
        }
    )
    row = reduce(lambda row, add: add(row), filter(None, additions), row)
    run.warn(caveats.row_warnings(measurement, row, model_files, data.identities, config.guaranteed))
    if config.curves or config.keep_examples:
        answers = without_nan(sample_values(predictions[ID_NAME], data.labels))
        if config.curves:
            first = results.rows[0] if results.rows else None
            row = with_curves(row, loaded, answers, data.labels, measurement, first)
            row = with_threshold_curve(row, curve)
        if config.keep_examples and not results.rows:
            results.examples = examples_of(
                data.inputs[ID_NAME].dataset,
                predictions[ID_NAME],
                {**answers, **accepted_answers(predictions[ID_NAME], row.known_test, row.threshold)},
                data.labels,
                data.class_names,
                most=config.keep_examples,
            )
    if not results.rows:
        results.first = numbers
        results.scores = predictors[0].scores if config.save_model and config.train else None
    results.rows.append(row)
    if config.save_predictions is not None:
        results.predictions[named.name] = predictions
    if needing(config.chosen, MetricNeeds.TIME):
        results.loaded.append(predictors)


def _row(
    config: EvalConfig, run: Evaluation, results: Results, loaded: LoadedRow, numbers: RowNumbers
) -> tuple[Row, Line | None]:
    """Return the row of the report, with thresholds and prediction sets, and the curve of `fit_threshold`."""
    model_files, tested, labels = loaded.model_files, loaded.predictions[ID_NAME], run.data.labels
    by_score, best = best_on_validation(run.measurement, loaded.predictions)
    stored = stored_temperatures(model_files)
    by_label = fit_label_thresholds(tested, labels) if config.label_thresholds else ()
    known_test, threshold, curve, among, score = None, None, None, None, results.threshold_score
    if config.keep_known is not None:
        content = run.data.identities[ID_NAME].content
        first = torch.ones(len(labels), dtype=torch.bool) if config.risk is None else first_half(content)
        known_test, passes = fit_known(tested, score, config.keep_known, first)
        if known_test.below is None and config.risk is None:
            raise DataError(
                f"{config.data}: {counted(known_test.count, 'sample')} are too few for `--keep-known {config.keep_known:g}`, "
                "so every input would be accepted",
                hint="give more held-out samples as `--data`",
            )
        among, score = passes & ~first, MSP
    if config.risk is not None:
        several = model_files[0].header.architecture.task.by_label
        thresholds = (by_label or loaded.header.label_thresholds) if several else None
        threshold, curve = fit_threshold(tested, labels, score, config.risk, by_label=thresholds, among=among)
    row = Row(
        name=loaded.named.name,
        models=tuple(fingerprint_of(m) for m in model_files),
        stored_temperatures=tuple(t.common for t in stored) if {*stored} != {Temperature()} else (),
        members=tested.shape[0],
        values=numbers.values,
        ood=numbers.ood,
        threshold=threshold,
        known_test=known_test,
        label_thresholds=by_label,
        label_temperatures=loaded.header.label_temperatures,
        entity_temperature=loaded.header.entity_temperature,
        means=means(numbers.ood, config.groups),
        mean_intervals=numbers.mean_intervals,
        ood_val=by_score,
        best_score=best,
        tuned_on_ood=caveats.tuned_on_ood(model_files),
        stored_scores=tuple(
            StoredScores(data=model.header.fitted.data)
            for model in model_files
            if config.train is None and config.fitted and model.header.fitted is not None
        ),
        sets=_sets(config, run, loaded),
    )
    return row, curve


def _sets(config: EvalConfig, run: Evaluation, loaded: LoadedRow) -> SetNumbers | None:
    """Measure a row's prediction sets.

    These are newly fitted sets, or the sets stored in the model if the row has a single model. None without
    sets, or if stored sets are not valid for this run.
    """
    predictions, labels, data = loaded.predictions[ID_NAME], run.data.labels, run.data.fingerprints[ID_NAME]
    if config.set_options.rule is not None:
        sets = fit_sets(predictions, labels, data, config.set_options.rule)
    elif len(loaded.model_files) != 1 or loaded.named.is_derived:
        return None
    elif (stored := loaded.model_files[0].header.prediction_sets) is not None:
        temperature = loaded.scaling.on_top_of(stored_temperatures(loaded.model_files))
        shortened = config.max_length is not None
        why = why_invalid(loaded.model_files[0], temperature, shortened=shortened, classes=run.data.classes)
        if why:
            progress.warn(
                f"{loaded.named.name}: its prediction sets are not measured: they are not valid for {why}"
            )
            return None
        sets = stored
    else:
        return None
    return measure_sets(sets, predictions, labels, run.data.class_names, data)


def _measure_time(config: EvalConfig, run: Evaluation, results: Results) -> None:
    latencies = measure_latencies(
        results.loaded, config.chosen, batch_size=config.batch_size, seed=config.seed, warn=run.warn
    )
    results.rows = [
        row.model_copy(update={"values": row.values | times})
        for row, times in zip(results.rows, latencies, strict=True)
    ]


def _document(
    config: EvalConfig,
    run: Evaluation,
    results: Results,
    measurers: Sequence[RowMeasurer],
    digest: str,
) -> Report:
    rows, libraries = results.rows, {model.family.library for model in chain.from_iterable(run.model_files)}
    # Some metrics exist only for certain rows and OOD sets. They count as measured if any row has them.
    measured = {*config.chosen} - {*needing(config.chosen, *WHERE_PRESENT, MetricNeeds.OOD)}
    values = [values for row in rows for values in (row.values, *row.ood.values())]
    measured |= {name.partition("@")[0] for by_name in values for name in by_name}
    run.warn(
        f"`{name}` is not measured: no row has it on these data"
        for name in (config.chosen if config.metrics else ())
        if name not in measured
    )
    report = Report(
        rows=tuple(rows),
        data=run.data.fingerprints,
        near=tuple(d.name for d in config.near),
        far=tuple(d.name for d in config.far),
        ood_val=tuple(d.name for d in config.ood_val),
        ood_scores=config.scores,
        definitions={name: metric.definition for name, metric in METRICS.items() if name in measured}
        | ({} if config.scores == (MSP,) else {f"@{name}": definition_of(name) for name in config.scores}),
        options=_options(config, run),
        warnings=tuple(run.caveats),
        examples=results.examples,
        checks=tuple(condition.check(rows[0], config.scores) for condition in config.fail_if),
        versions={"hydractl": __version__, **versions("torch", "scikit-learn", *libraries)},
        config_digest=digest,
    )
    return reduce(lambda report, measurer: measurer.complete(report), measurers, report)


def _options(config: EvalConfig, run: Evaluation) -> dict[str, OptionValue]:
    """Return the given options with an influence on the numbers."""
    classes = run.data.classes
    options: dict[str, OptionValue] = {
        "batch_size": config.batch_size,
        "bootstrap": config.bootstrap,
        "device": run.device.type,
        "dtype": config.dtype,
        "classes": None if classes is None else classes.names,
        "templates": None if classes is None else classes.templates,
        "max_length": config.max_length,
        "seed": config.seed,
        **_fitting_options(config),
    }
    return {name: option for name, option in options.items() if option is not None or name == "dtype"}


def _fitting_options(config: EvalConfig) -> dict[str, OptionValue]:
    """Return the options of temperature, tests and sets, which reports and stored models record."""
    return {
        "temperature": config.given_temperature,
        "threshold_for": risk_text(config.threshold_for),
        "label_thresholds": config.label_thresholds or None,
        "guarantee": None if config.has_confidence else config.promised.value,
        "delta": config.chance,
        "keep_known": config.keep_known,
        **config.set_options.recorded,
    }


def _write(
    original: EvalConfig,
    config: EvalConfig,
    run: Evaluation,
    results: Results,
    document: Report,
    output: Output,
) -> None:
    """Write all files or none.

    Args:
        original: Options as the user gave them.
        config: Options with the default OOD scores.
        run: Models and data.
        results: Measurements.
        document: The report.
        output: Outputs of the command.
    """
    model_file, header = run.model_files[0][0], run.model_files[0][0].header
    if original.save_model is not None:
        header = _header_of_copy(original, run, results)
    with output.publish() as begin:
        if original.save_model is not None:
            write_copy(begin(original.save_model, header), model_file.checkpoint, header, results.scores)
        if original.save_predictions is not None:
            write_predictions(
                begin(original.save_predictions),
                results.predictions,
                {ID_NAME: run.data.labels},
                with_logits=any(score in SCORES and SCORES[score].raw for score in config.scores),
            )
        if original.out is not None:
            begin(original.out).write(document.to_json().encode())


def _header_of_copy(config: EvalConfig, run: Evaluation, results: Results) -> Header:
    """Return the header of the copy for `--save-model`. `config` has the options as the user gave them."""
    model_file, row, data = run.model_files[0][0], results.rows[0], run.data.identities
    # `sources_of_stored` reads the inputs of the step in this order.
    roles = (
        ID_NAME,
        *(TEMPERATURE,) * (config.temperature_data is not None),
        *(FIT,) * (config.train is not None),
        *(VAL,) * (config.standardized_on is not None),
    )
    inputs = [data[role].as_input() for role in roles]
    temperature = row.scale.rounded() if TEMPERATURE in row.values else model_file.header.scale
    step = make_step(
        config,
        family=model_file.family,
        options={
            **_fitting_options(config),
            "ood_score": next((test.score for test in (row.known_test, row.threshold) if test), None),
            "fitted": config.fitted if config.train is not None else None,
            "max_length": config.max_length,
        },
        inputs=[model_file.as_input(), *inputs],
        results={"temperature": temperature.common}
        | ({} if row.threshold is None else {"coverage": row.threshold.coverage}),
    )
    changes = stored_guarantees(
        model_file,
        row,
        temperature,
        shortened=config.max_length is not None,
        refits_scores=results.scores is not None,
    )
    if results.scores is not None:
        changes["fitted"] = FittedScores(
            scores=tuple(results.scores.fitted),
            data=data[FIT].fingerprint,
            temperature=results.scores.temperature,
            version=VERSION,
        )
    changes |= {"base": model_file.base, "samples": samples_of(inputs, model_file.header), "made_by": step}
    return model_file.header.model_copy(update=temperature.fields | changes)
