"""eval: how good, how well calibrated, how watchful and how expensive are models?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.claims import Claim
from hydractl.data.corruptions.names import chosen
from hydractl.data.inputs import content_of
from hydractl.data.items import Content
from hydractl.families.opening import OpenModel
from hydractl.fusion.building import load_any
from hydractl.fusion.detecting import Detecting, Scores
from hydractl.hub.folders import publish_models
from hydractl.manifest.document import Fingerprint, Option
from hydractl.manifest.report import Report, Row
from hydractl.manifest.scopes import ID_NAME
from hydractl.metrics.measures import Numbers, means, measure
from hydractl.metrics.metric import Needs
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.samples import Kept
from hydractl.metrics.scores import KNN, MSP, SCORES, definition_of
from hydractl.metrics.table import METRICS, needing
from hydractl.parallel import answering_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.publish import is_stream
from hydractl.runtime import digest_file, torch_dtype, versions
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import Loaded, check_training_told, count_sizes, measure_latencies
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.detection import as_stored, check_held, detecting, validated
from hydractl.stages.evaluate.doubts import of_row, of_temperatures, tuned_on_ood
from hydractl.stages.evaluate.extras.analyses import Analyst, check_rows, read_scores
from hydractl.stages.evaluate.extras.curves import with_curves
from hydractl.stages.evaluate.extras.shift import check_photographs, under_corruptions
from hydractl.stages.evaluate.opened import check_alike, check_written, open_rows
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.stages.evaluate.report import EvalReport
from hydractl.stages.evaluate.risk import told
from hydractl.stages.evaluate.rivals import check_made, derive
from hydractl.stages.evaluate.saved import SavedPredictions
from hydractl.stages.evaluate.selection import Stored, check_storable, threshold_of
from hydractl.stages.shared.asked import asked_of
from hydractl.stages.shared.classes import settle
from hydractl.stages.shared.outputs import claim
from hydractl.stages.shared.predictions import (
    Asked,
    Keeping,
    Parted,
    Predictor,
    Scaling,
    fits,
    predict_together,
)
from hydractl.stages.shared.unchanged import replaces
from hydractl.version import __version__


def run_eval(config: EvalConfig, progress: Progress = SILENT) -> EvalReport:
    """Measure every row on every data set, and write report and predictions if wanted.

    Models are loaded one row at a time unless time is measured, which needs them side by side. Several processes that a
    launcher started share the batches; the first of them measures and writes, the same bytes as one alone.

    Raises:
        InputError: If a model or a data set cannot be used, or the models do not belong in one table.
        OutputExists: If an output is there already.
        Interrupted: If another process of the run ended before its time.
    """
    device = answering_device(config.device)
    dtype = None if config.dtype is None else torch_dtype(config.dtype)
    outputs = [config.out, config.save_predictions, config.store]
    with (
        start_team(device) as team,
        claim(outputs * team.leads, progress, force=replaces(config)) as own,
    ):
        return _run(config, Machine(device, dtype, Keeping(team, _folder(outputs))), own, progress)


def _run(config: EvalConfig, machine: Machine, own: Claim, progress: Progress) -> EvalReport:
    opened = open_rows(config)
    team = machine.keeping.team
    if team.leads:
        check_written(config, opened, own)
    check_alike([m for row in opened for m in row], renamed=bool(config.naming.names))
    check_rows(config, opened)
    check_held(config, opened)
    check_training_told(config, opened)
    unfair = [*of_temperatures(config, opened)]
    for doubt in unfair:
        progress.warn(doubt)
    head_scores = read_scores(config, opened)
    texts = content_of(opened[0][0].header.preprocess) is Content.TEXTS
    corruptions = chosen(config.corrupt, texts=texts, seed=config.seed)
    check_photographs(corruptions, opened[0][0].header.preprocess)
    config.check_conditions((each.name, str(each.severity)) for each in corruptions)
    data = EvalData.open(config, opened, team, progress)
    if not data.streamed:
        data.learn()
    check_storable(config, opened[0][0], data.classes)
    check_held(config, opened, data.classes)
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
    rows, doubts, predictions, fitted = _measure_rows(config, opened, data, machine, analyst, progress)
    if not team.leads:
        document = Report.from_json(team.told(""), where="the report of rank 0")
        return EvalReport(document=document, paths=_paths(config, document), config=config)
    document = _document(config, data, rows, machine.device, opened, [*unfair, *doubts])
    model, paths = opened[0][0], _paths(config, document)
    stored = None
    if config.store in paths:
        stored = Stored.of(config, model, rows[0], data.known.fingerprints, fitted, progress)
    _publish(config, document, predictions, own, stored)
    team.told(document.to_json())  # when it is there: the others end with it
    return EvalReport(document=document, paths=paths, config=config)


def _paths(config: EvalConfig, document: Report) -> tuple[Path, ...]:
    """Return what is written; no model without the threshold that it was to have."""
    failed = config.threshold_for is not None and document.rows[0].threshold is None
    paths = (config.save_predictions, config.out, None if failed else config.store)
    return tuple(path for path in paths if path is not None)


class Machine(NamedTuple):
    """Where and in which dtype models run, None being each model's own; and who runs them, and where what they say is kept."""

    device: torch.device
    dtype: torch.dtype | None
    keeping: Keeping


def _folder(outputs: Sequence[Path | None]) -> Path | None:
    """Return the folder of the first output that is a file: where there is room for it, predictions may wait too."""
    first = next((path for path in outputs if path is not None and not is_stream(path)), None)
    return None if first is None else first.resolve().parent


def _measure_rows(
    config: EvalConfig,
    opened: Sequence[Sequence[OpenModel]],
    data: EvalData,
    machine: Machine,
    analyst: Analyst,
    progress: Progress,
) -> tuple[list[Row], list[str], SavedPredictions, Scores | None]:
    """Return every row, what is doubtful of them, what is kept of what they say, and the first row's OOD scores if they are stored."""
    leads = machine.keeping.team.leads
    timed = leads and bool(needing(config.chosen, Needs.TIME))
    rows: list[Row] = []
    numbers: list[Numbers] = []
    doubts: list[str] = []
    loaded: list[Loaded] = []
    scores: Scores | None = None
    saved = SavedPredictions(labels={})
    for named, models in zip(config.rows, opened, strict=True):
        progress.step(f"Evaluating {named.name}")
        row = _load(models, machine)
        for model, opened_as in zip(row.models, models, strict=True):
            settle(model, opened_as, data.classes)
        row, asked, derived = derive(named, row, models, data, progress)
        ask = partial(_ask, row, asked, keeping=machine.keeping, progress=progress)
        beside = detecting(row, asked, data, config, machine.keeping.team, progress)
        stored = as_stored(config, models, beside)
        if models is opened[0] and config.store is not None and not stored:
            scores = next((own.scores for own in beside if isinstance(own, Detecting)), None)
        said = ask(beside)
        held = None if data.heldout is None else said(data.heldout[0])
        scaling = _scaling(config, named, held, data, progress)
        del held
        every = {name: said(inputs) for name, inputs in data.inputs.items()}
        data.learn()  # streams have passed
        found = {name: scaling(each) for name, each in every.items() if each is not None}
        shift = under_corruptions(config, analyst.corruptions, data, ask(row.models), scaling)
        analyses = analyst.of(named, row, models, found, scaling)
        del ask, said, beside  # they hold the row
        if not leads:
            del row  # before the next one is loaded
            continue
        others = scaling.values(_stored(models)) | count_sizes(row, config.chosen, models)
        labels = data.known.labels
        numbers.append(replace(_numbers(config, found, labels), shift=shift))
        measured = _row(config, named, models, found, labels, numbers[-1])
        compared = numbers[0].less(numbers[-1]) if len(numbers) > 1 else None
        more = {
            "values": measured.values | others,
            "shift": None if shift is None else shift.told(),
            "difference": compared,
            "analyses": analyses,
        }
        rows.append(measured.model_copy(update={"derived": derived, "stored_scores": stored, **more}))
        for doubt in of_row(config, rows[-1], models, data.known.fingerprints):
            doubts.append(doubt)
            progress.warn(doubt)
        if config.save_predictions is not None:
            saved.add(
                named.name, found, raw=any(SCORES[score].raw for score in config.scores if score in SCORES)
            )
        if config.curves:
            rows[-1] = with_curves(config, rows[-1], models, found, labels)
        if timed:
            loaded.append(row)
        del row  # before the next one is loaded
    if timed:
        times, busy = measure_latencies(
            loaded, config.chosen, batch_size=config.batch_size, seed=config.seed, progress=progress
        )
        rows = [r.model_copy(update={"values": r.values | t}) for r, t in zip(rows, times, strict=True)]
        doubts += busy
    saved.labels[ID_NAME] = data.known.labels
    return rows, [*data.known.doubts, *doubts], saved, scores


def _load(models: Sequence[OpenModel], machine: Machine) -> Loaded:
    hint = "try `--device cpu`, or `--no-latency`, which holds one row at a time"
    with fits(models[0].reference, machine.device, hint=hint):
        loaded = tuple(load_any(m, dtype=machine.dtype).to(machine.device) for m in models)
    return Loaded(models=loaded, preprocess=tuple(m.header.preprocess for m in models))


def _scaling(
    config: EvalConfig, named: NamedModels, held: Kept | None, data: EvalData, progress: Progress
) -> Scaling:
    """Return the temperature of a row, given what it says of the held-out split."""
    if held is None or data.heldout is None:
        return Scaling(temperature=config.given_temperature)
    return Scaling.fit(held, data.heldout[1], row=named.name, progress=progress)


def _ask(
    row: Loaded,
    opened: Sequence[OpenModel],
    asked: Sequence[Predictor | Detecting],
    *,
    keeping: Keeping,
    progress: Progress,
) -> Callable[[Parted], Kept | None]:
    """Return what has the models of a row answer, or what stands for each."""
    each = [
        Asked(model, reads, own.reference)
        for model, reads, own in zip(asked, row.preprocess, opened, strict=True)
    ]
    return lambda inputs: predict_together(each, inputs, keeping, progress=progress)


def _numbers(config: EvalConfig, found: dict[str, Kept], labels: Tensor) -> Numbers:
    made = measure(
        found[ID_NAME],
        labels,
        {d.name: found[d.name] for d in config.ood},
        metrics=config.chosen,
        scores=config.scores,
        resampling=Resampling(resamples=config.bootstrap, seed=config.seed),
    )
    return replace(made, groups=config.groups)


def _row(
    config: EvalConfig,
    named: NamedModels,
    models: Sequence[OpenModel],
    found: dict[str, Kept],
    labels: Tensor,
    numbers: Numbers,
) -> Row:
    by_score, best = validated(config, found)
    return Row(
        name=named.name,
        models=tuple(Fingerprint(reference=m.as_input().name, sha256=m.checkpoint.digest) for m in models),
        stored_temperatures=stored if {*(stored := _stored(models))} != {1.0} else (),
        members=found[ID_NAME].shape[0],
        values=numbers.values,
        ood=(ood := numbers.ood),
        threshold=threshold_of(config, found[ID_NAME], labels),
        means=means(ood, config.groups),
        mean_intervals=numbers.mean_intervals,
        ood_val=by_score,
        best_score=best,
        tuned_on_ood=tuned_on_ood(models),
    )


def _stored(models: Sequence[OpenModel]) -> tuple[float, ...]:
    return tuple(model.header.temperature for model in models)


def _document(
    config: EvalConfig,
    data: EvalData,
    rows: Sequence[Row],
    device: torch.device,
    opened: Sequence[Sequence[OpenModel]],
    doubts: Sequence[str],
) -> Report:
    libraries = {m.family.library for row in opened for m in row}
    shown = {*config.chosen, *(name for row in rows for name in row.values)}
    return Report(
        rows=tuple(rows),
        data=data.known.fingerprints,
        near=tuple(d.name for d in config.near),
        far=tuple(d.name for d in config.far),
        ood_val=tuple(d.name for d in config.ood_val),
        ood_scores=config.scores,
        definitions={name: metric.definition for name, metric in METRICS.items() if name in shown}
        | _definitions(config.scores),
        options=_options(config, data, device),
        scores=tuple(
            Fingerprint(reference=f"{own.name}={own.ref.name}", sha256=digest_file(own.ref))
            for own in config.analysing.scores
        ),
        warnings=tuple(doubts),
        checks=tuple(condition.check(rows[0], config.scores) for condition in config.fail_if),
        versions={"hydractl": __version__, **versions("torch", "scikit-learn", *libraries)},
        asked=asked_of(config),
    )


def _options(config: EvalConfig, data: EvalData, device: torch.device) -> dict[str, Option]:
    """Return the options that shape the numbers; those that were not given are left out."""
    named, kept = data.classes, config.threshold_for
    given: dict[str, Option] = {
        "batch_size": config.batch_size,
        "bootstrap": config.bootstrap,
        "device": device.type,
        "dtype": config.dtype,
        "classes": None if named is None else named.names,
        "templates": None if named is None else named.templates,
        "max_length": config.max_length,
        "seed": config.seed,
        "threshold_for": None if kept is None else told(kept),
        "delta": None if kept is None else config.chance,
        "temperature": config.given_temperature,
        "corrupt": tuple(map(str, config.corrupt)) or None,
        "frost": next((each.photographs.sha256 for each in config.corrupt if each.photographs), None),
        "analyse": config.analysing.analyse or None,
        "knn_k": config.neighbours if KNN in config.scores and config.fit is not None else None,
    }
    return {name: value for name, value in given.items() if value is not None or name == "dtype"}


def _definitions(scores: Sequence[str]) -> dict[str, str]:
    """Return what scores mean; of the usual one alone the metrics say it."""
    return {} if scores == (MSP,) else {f"@{name}": definition_of(name) for name in scores}


def _publish(
    config: EvalConfig,
    document: Report,
    predictions: SavedPredictions,
    own: Claim,
    stored: Stored | None,
) -> None:
    """Write all files or none."""
    with publish_models(own) as begin:
        if stored is not None and config.store is not None:
            stored.write(begin(config.store, stored.header))
        if config.save_predictions is not None:
            predictions.write(begin(config.save_predictions, None))
        if config.out is not None:
            begin(config.out, None).write(document.to_json().encode())
