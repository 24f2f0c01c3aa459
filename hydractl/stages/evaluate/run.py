"""eval: measures accuracy, calibration, OOD detection, diversity and cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from hydractl.data.corruptions.names import chosen
from hydractl.data.datasets import Content
from hydractl.data.encode import content_of
from hydractl.hub.model_outputs import publish_models
from hydractl.manifest.document import Fingerprint, OptionValue
from hydractl.manifest.report import Report
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.metric_spec import WHERE_PRESENT, MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, SCORES, definition_of
from hydractl.metrics.registry import METRICS, needing
from hydractl.output.publish import OutputLock, is_stream
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_file, torch_dtype, versions
from hydractl.stages.evaluate.baseline_rows import check_made
from hydractl.stages.evaluate.caveats import of_temperatures
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import check_training_told
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.extras.analyses import Analyst, check_rows, read_scores
from hydractl.stages.evaluate.fail_if import risk_text
from hydractl.stages.evaluate.measure_ood import check_fitted_scores, with_default_score
from hydractl.stages.evaluate.measure_row import Evaluation, RowCollector, measure_rows
from hydractl.stages.evaluate.open_models import (
    check_alike,
    check_outputs,
    check_photographs,
    check_task,
    open_rows,
)
from hydractl.stages.evaluate.predictions_file import write_predictions
from hydractl.stages.evaluate.report import EvalReport
from hydractl.stages.evaluate.selective_threshold import ModelCopy, check_stores
from hydractl.stages.shared.command_config import config_digest
from hydractl.stages.shared.outputs import claim
from hydractl.stages.shared.predictions import Keeping
from hydractl.version import __version__


def run_eval(config: EvalConfig, progress: Progress = SILENT) -> EvalReport:
    """Measure every row on every data set, and optionally write a report and predictions.

    Models are loaded one row at a time, unless latency is measured, which needs all of them. Processes of a launcher
    share the batches; the first measures and writes, with the same bytes as a single process.

    Raises:
        InputError: If a model or a data set cannot be used, or the models have different classes.
        OutputExists: If an output already exists.
        Interrupted: If another process of the run ended unexpectedly.
    """
    device = answering_device(config.device)
    outputs = [config.out, config.save_predictions, config.store]
    with (
        start_team(device) as team,
        claim(config, outputs * team.leads, progress) as lock,
    ):
        run = _prepare(config, device, team, lock, progress)
        table = measure_rows(run)
        if not team.leads:
            document = Report.from_json(team.broadcast(""), where="the report of rank 0")
            return EvalReport(document=document, paths=_paths(config), config=config)
        document = _document(run, table, digest=config_digest(config))
        _write(config, run, table, document, lock)
        team.broadcast(document.to_json())  # when it is there: the others end with it
        return EvalReport(document=document, paths=_paths(config), config=config)


def _prepare(
    config: EvalConfig, device: torch.device, team: ProcessGroup, lock: OutputLock, progress: Progress
) -> Evaluation:
    """Open models and data, and refuse what does not fit together before any model is loaded."""
    opened = open_rows(config)
    if team.leads:
        check_outputs(config, opened, lock)
    check_alike(config, opened)
    check_task(config, opened[0][0])
    check_rows(config, opened)
    is_default, config = config.ood_score is None, with_default_score(config, opened)
    is_fittable = opened[0][0].header.architecture.task.has_one_question
    if config.scores == (MSP,) and is_default and config.ood and is_fittable:
        progress.step(f"the only OOD score is `{MSP}`; `--fit TRAIN --val VAL` adds `{ENERGY_DENSITY}`")
    check_fitted_scores(config, opened)
    check_training_told(config, opened)
    for caveat in of_temperatures(config, opened):
        progress.warn(caveat)
    head_scores = read_scores(config, opened)
    first = opened[0][0]
    texts = content_of(first.header.preprocess) is Content.TEXTS
    corruptions = chosen(config.corrupt, texts=texts, seed=config.seed)
    check_photographs(corruptions, first.header.preprocess)
    config.check_conditions(
        ((corruption.name, str(corruption.severity)) for corruption in corruptions), config.scores
    )
    data = EvalData.open(config, opened, team, progress)
    if not data.streamed:
        data.validate()
    if config.store:
        check_stores(first, data.classes)
    check_fitted_scores(config, opened, data.classes)
    for named, models in zip(config.rows, opened, strict=True):
        check_made(named, models, data.classes)
    analyst = Analyst(
        config=config,
        opened=opened,
        data=data,
        corruptions=corruptions,
        scores=head_scores,
        team=team,
        progress=progress,
    )
    return Evaluation(
        config=config,
        threshold_score=config.scores[-1 if is_default else 0],
        opened=opened,
        data=data,
        corruptions=corruptions,
        analyst=analyst,
        device=device,
        dtype=None if config.dtype is None else torch_dtype(config.dtype),
        keeping=Keeping(team, _output_folder(config)),
        progress=progress,
    )


def _output_folder(config: EvalConfig) -> Path | None:
    """Return the folder of the first output that is a file: where there is room for it, predictions may wait too."""
    outputs = (config.out, config.save_predictions, config.store)
    first = next((path for path in outputs if path is not None and not is_stream(path)), None)
    return None if first is None else first.resolve().parent


def _paths(config: EvalConfig) -> tuple[Path, ...]:
    """Return what is written."""
    paths = (config.save_predictions, config.out, config.store)
    return tuple(path for path in paths if path is not None)


def _document(run: Evaluation, table: RowCollector, *, digest: str) -> Report:
    config, summary = run.config, run.data.summary
    libraries = {model.family.library for models in run.opened for model in models}
    # what only some rows and OOD sets have counts where one has it
    measured = {*config.chosen} - {*needing(config.chosen, *WHERE_PRESENT, MetricNeeds.OOD)}
    values = [values for row in table.rows for values in (row.values, *row.ood.values())]
    measured |= {name.partition("@")[0] for by_name in values for name in by_name}
    caveats = [*of_temperatures(config, run.opened), *summary.caveats, *table.caveats]
    for name in config.chosen if config.metrics else ():
        if name not in measured:
            caveats.append(f"`{name}` is not measured: no row has it on these data")
            run.progress.warn(caveats[-1])
    return Report(
        rows=tuple(table.rows),
        data=summary.fingerprints,
        near=tuple(d.name for d in config.near),
        far=tuple(d.name for d in config.far),
        ood_val=tuple(d.name for d in config.ood_val),
        ood_scores=config.scores,
        definitions={name: metric.definition for name, metric in METRICS.items() if name in measured}
        | _score_definitions(config.scores),
        options=_options(run),
        scores=tuple(
            Fingerprint(reference=f"{scores.name}={scores.ref.name}", sha256=digest_file(scores.ref))
            for scores in config.analysing.scores
        ),
        warnings=tuple(caveats),
        examples=table.examples,
        checks=tuple(condition.check(table.rows[0], config.scores) for condition in config.fail_if),
        versions={"hydractl": __version__, **versions("torch", "scikit-learn", *libraries)},
        config_digest=digest,
    )


def _options(run: Evaluation) -> dict[str, OptionValue]:
    """Return the options that shape the numbers; those that were not given are left out."""
    config, classes = run.config, run.data.classes
    options: dict[str, OptionValue] = {
        "batch_size": config.batch_size,
        "bootstrap": config.bootstrap,
        "device": run.device.type,
        "dtype": config.dtype,
        "classes": None if classes is None else classes.names,
        "templates": None if classes is None else classes.templates,
        "max_length": config.max_length,
        "seed": config.seed,
        "threshold_for": risk_text(config.threshold_for),
        "label_thresholds": config.label_thresholds or None,
        "guarantee": None if config.has_confidence else config.promised.value,
        "delta": config.chance,
        **config.set_options.recorded,
        "temperature": config.given_temperature,
        "corrupt": tuple(map(str, config.corrupt)) or None,
        "frost": next((c.photographs.sha256 for c in config.corrupt if c.photographs), None),
        "analyse": config.analysing.analyse or None,
    }
    return {name: option for name, option in options.items() if option is not None or name == "dtype"}


def _score_definitions(scores: Sequence[str]) -> dict[str, str]:
    """Return what scores mean; of the usual one alone the metrics say it."""
    return {} if scores == (MSP,) else {f"@{name}": definition_of(name) for name in scores}


def _write(
    config: EvalConfig, run: Evaluation, table: RowCollector, document: Report, lock: OutputLock
) -> None:
    """Write all files or none; each says the options of `config`, as they were given."""
    summary = run.data.summary
    copy = None
    if config.store is not None:
        copy = ModelCopy.of(
            config, run.opened[0][0], table.rows[0], summary.identities, table.fitted_scores, run.progress
        )
    with publish_models(lock) as begin:
        if copy is not None and config.store is not None:
            copy.write(begin(config.store, copy.header))
        if config.save_predictions is not None:
            write_predictions(
                begin(config.save_predictions, None),
                table.predictions,
                {ID_NAME: summary.labels},
                with_logits=any(score in SCORES and SCORES[score].raw for score in run.config.scores),
            )
        if config.out is not None:
            begin(config.out, None).write(document.to_json().encode())
