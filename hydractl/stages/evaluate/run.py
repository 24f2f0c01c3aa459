"""eval: measures accuracy, calibration, OOD detection, diversity and cost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hydractl import progress
from hydractl.checkpoint import Chunks, TensorSpec, spec_of, tensor_bytes, write_checkpoint
from hydractl.errors import CheckFailed
from hydractl.manifest.document import OptionValue
from hydractl.manifest.report import Report
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.metric_spec import WHERE_PRESENT, MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, MSP, SCORES, definition_of
from hydractl.metrics.per_sample import StoredPredictions, at_once
from hydractl.metrics.registry import METRICS, needing
from hydractl.metrics.selective import fewest
from hydractl.output.publish import Sink, is_stream
from hydractl.prediction.open_inputs import open_reader
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import stage
from hydractl.provenance.command_config import config_digest
from hydractl.provenance.output import Output
from hydractl.runtime import torch_dtype, versions
from hydractl.stages.evaluate.caveats import of_temperatures
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import check_training_told
from hydractl.stages.evaluate.data import EvalData, check_alike, check_outputs, check_task
from hydractl.stages.evaluate.fail_if import OPTION, risk_text
from hydractl.stages.evaluate.measure_row import (
    Evaluation,
    check_fitted_scores,
    measure_rows,
    with_default_score,
)
from hydractl.stages.evaluate.selective_threshold import check_stores, header_of_copy, write_copy
from hydractl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Measurements of `eval`, and the files written."""

    document: Report
    paths: tuple[Path, ...]
    config: EvalConfig

    def require_checks(self) -> None:
        """Raise an error if a condition holds or no threshold was found; call it after the report has been shown.

        Raises:
            CheckFailed: If a condition holds or no threshold was found; the message has the measured values.
        """
        config, row, checks = self.config, self.document.rows[0], self.document.checks
        if row.threshold is not None and row.threshold.below is None:
            stored = f"; {config.store} stores this for `predict`" if config.store else ""
            least = fewest(row.threshold.risk, config.chance)
            raise CheckFailed(
                f"`{OPTION} {risk_text(config.threshold_for)}`: {row.name}: {row.threshold.summary}{stored}",
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


@stage
def run_eval(config: EvalConfig) -> EvalReport:
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
        Output.claim(config, outputs, writes=team.leads) as output,
    ):
        run = _prepare(config, device, team, output)
        measure_rows(run)
        if not team.leads:
            document = Report.from_json(team.broadcast(""), where="the report of rank 0")
            return EvalReport(document=document, paths=_paths(config), config=config)
        document = _document(run, digest=config_digest(config))
        _write(config, run, document, output)
        team.broadcast(document.to_json())  # when it is there: the others end with it
        return EvalReport(document=document, paths=_paths(config), config=config)


def _prepare(config: EvalConfig, device: torch.device, team: ProcessGroup, output: Output) -> Evaluation:
    """Open models and data, and refuse what does not fit together before any model is loaded."""
    opened = [
        [
            open_reader(m, arch=config.arch if row == 0 else None, max_length=config.max_length)
            for m in named.models
        ]
        for row, named in enumerate(config.rows)
    ]
    check_outputs(config, opened, output)
    check_alike(config, opened)
    check_task(config, opened[0][0])
    measurers = [extension.begin(config, opened) for extension in config.extensions]
    is_default, config = config.ood_score is None, with_default_score(config, opened)
    is_fittable = opened[0][0].header.architecture.task.has_one_question
    if config.scores == (MSP,) and is_default and config.ood and is_fittable:
        progress.step(f"the only OOD score is `{MSP}`; `--fit TRAIN --val VAL` adds `{ENERGY_DENSITY}`")
    check_fitted_scores(config, opened)
    check_training_told(config, opened)
    for caveat in of_temperatures(config, opened):
        progress.warn(caveat)
    first = opened[0][0]
    config.check_conditions([scope for measurer in measurers for scope in measurer.scopes], config.scores)
    data = EvalData.open(config, opened, team)
    if config.store:
        check_stores(first, data.classes)
    check_fitted_scores(config, opened, data.classes)
    # the disk of the first output that is a file has room for outputs
    files = (path for path in (config.out, config.save_predictions, config.store) if path is not None)
    file = next((path for path in files if not is_stream(path)), None)
    return Evaluation(
        config=config,
        threshold_score=config.scores[-1 if is_default else 0],
        opened=opened,
        data=data,
        measurers=measurers,
        device=device,
        dtype=None if config.dtype is None else torch_dtype(config.dtype),
        team=team,
        folder=Path(tempfile.gettempdir()) if file is None else file.resolve().parent,
    )


def _paths(config: EvalConfig) -> tuple[Path, ...]:
    """Return what is written."""
    paths = (config.save_predictions, config.out, config.store)
    return tuple(path for path in paths if path is not None)


def _document(run: Evaluation, *, digest: str) -> Report:
    config, data = run.config, run.data
    libraries = {model.family.library for models in run.opened for model in models}
    # what only some rows and OOD sets have counts where one has it
    measured = {*config.chosen} - {*needing(config.chosen, *WHERE_PRESENT, MetricNeeds.OOD)}
    values = [values for row in run.rows for values in (row.values, *row.ood.values())]
    measured |= {name.partition("@")[0] for by_name in values for name in by_name}
    caveats = [*of_temperatures(config, run.opened), *data.caveats, *run.caveats]
    for name in config.chosen if config.metrics else ():
        if name not in measured:
            caveats.append(f"`{name}` is not measured: no row has it on these data")
            progress.warn(caveats[-1])
    report = Report(
        rows=tuple(run.rows),
        data=data.fingerprints,
        near=tuple(d.name for d in config.near),
        far=tuple(d.name for d in config.far),
        ood_val=tuple(d.name for d in config.ood_val),
        ood_scores=config.scores,
        definitions={name: metric.definition for name, metric in METRICS.items() if name in measured}
        | ({} if config.scores == (MSP,) else {f"@{name}": definition_of(name) for name in config.scores}),
        options=_options(run),
        warnings=tuple(caveats),
        examples=run.examples,
        checks=tuple(condition.check(run.rows[0], config.scores) for condition in config.fail_if),
        versions={"hydractl": __version__, **versions("torch", "scikit-learn", *libraries)},
        config_digest=digest,
    )
    for measurer in run.measurers:
        report = measurer.complete(report)
    return report


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
    }
    return {name: option for name, option in options.items() if option is not None or name == "dtype"}


def _write(config: EvalConfig, run: Evaluation, document: Report, output: Output) -> None:
    """Write all files or none; each says the options of `config`, as they were given."""
    opened, scores = run.opened[0][0], run.fitted_scores
    header = opened.header
    if config.store is not None:
        header = header_of_copy(config, opened, run.rows[0], run.data.identities, scores)
    with output.publish() as begin:
        if config.store is not None:
            write_copy(begin(config.store, header), opened.checkpoint, header, scores)
        if config.save_predictions is not None:
            write_predictions(
                begin(config.save_predictions),
                run.predictions,
                {ID_NAME: run.data.labels},
                with_logits=any(score in SCORES and SCORES[score].raw for score in run.config.scores),
            )
        if config.out is not None:
            begin(config.out).write(document.to_json().encode())


LOG_PROBS, LOGSUMEXP, LABELS, SCORE_TENSORS = "log_probs", "logsumexp", "labels", "scores"


def write_predictions(
    file: Sink,
    predictions: Mapping[str, Mapping[str, StoredPredictions]],
    labels: Mapping[str, Tensor],
    *,
    with_logits: bool,
) -> None:
    """Write a canonical safetensors file: `log_probs/ROW/DATA`, perhaps `logsumexp/ROW/DATA`, and `labels/DATA`.

    Scores of features are `scores/ROW/DATA/SCORE`.

    Args:
        file: Where to.
        predictions: Of each row on each data set, float32, scaled by the row's temperature if it has one. The ID set is `id`.
        labels: Of each labelled data set, the model's classes (N,), int64; (N, Q) of models that answer Q labels.
        with_logits: Whether `logsumexp` is written, from which logits follow.
    """
    sets = {
        f"{row}/{data}": responses
        for row, by_data in predictions.items()
        for data, responses in by_data.items()
    }
    tensors = {f"{LABELS}/{data}": tensor for data, tensor in labels.items()}
    for name, responses in sets.items():
        tensors |= {f"{SCORE_TENSORS}/{name}/{score}": tensor for score, tensor in responses.scores.items()}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    for name, responses in sets.items():
        specs[f"{LOG_PROBS}/{name}"] = TensorSpec("F32", responses.shape)
        if with_logits:
            specs[f"{LOGSUMEXP}/{name}"] = TensorSpec("F32", responses.shape[:-1])

    def chunks(name: str) -> Chunks:
        kind, _, of = name.partition("/")
        return [tensor_bytes(tensors[name])] if name in tensors else _bytes(sets[of], kind)

    write_checkpoint(file, specs, chunks, header=None)


def _bytes(predictions: StoredPredictions, kind: str) -> Iterator[memoryview | bytes]:
    """Yield what a tensor of that kind holds, member after member."""
    for member in predictions.members():
        for part in member.split(at_once(member)):
            tensor = part.log_probs if kind == LOG_PROBS else part.logsumexp
            yield b"" if tensor is None else tensor_bytes(tensor)
