"""predict: write labels, confidence and OOD scores of inputs."""

from __future__ import annotations

import shlex
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from hydractl import progress
from hydractl.data.batches import BatchShare
from hydractl.data.open_dataset import accept_unreadable, open_items
from hydractl.data.reference import LINES, DataRef, image_path
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, InputError, UsageError
from hydractl.families.open_model import OpenModel, digest_weights
from hydractl.manifest.header import Header, Step
from hydractl.manifest.report import Report, Row
from hydractl.messages import counted
from hydractl.metrics.ood_scores import ENERGY_DENSITY, RELATIVE, default_score, is_fitted
from hydractl.metrics.registry import FIT
from hydractl.output.publish import is_stream
from hydractl.prediction.class_names import Classes, with_class_names
from hydractl.prediction.feature_ood import FitOn, Predictor, check_tests, with_ood_scores
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.open_inputs import digests, labels_of, open_reader, warn_of_model
from hydractl.prediction.predictions import NO_BOUNDS, UNKNOWN, UNSURE, Bounds
from hydractl.prediction.run_models import answer_blocks, load_predictors, window
from hydractl.prediction.sources import Source, lines, open_sources
from hydractl.prediction.writers import (
    ACCEPTED,
    ENTITIES,
    ERROR,
    LABELS,
    REASON,
    WRITERS,
    JSONLines,
    Line,
    LineFormatter,
)
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import stage
from hydractl.provenance.output import Output, sidecar_step
from hydractl.runtime import torch_dtype
from hydractl.stages.predict.config import NO_THRESHOLD, PredictConfig, check_bound
from hydractl.strict_json import read_text
from hydractl.tags import tag_scheme

AT_ONCE = 1024
"""Number of lines in memory before they are written to a file. Chosen by hand; twice the number needs twice
the memory and makes larger row groups in Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictReport:
    """Result of `predict`.

    Attributes:
        path: Output file; `-` is standard output.
        inputs: Number of inputs.
        labels: Number of predictions of each class, or number of entities of each label. An input may have
            several labels.
        bad: Number of unreadable images. The output contains their errors.
        accepted: Number of accepted inputs; None without a threshold.
        rejected: Number of other inputs by reason, `unknown` and `unsure`; None without a test of known inputs.
        reason: Why there is no threshold, and how to get a threshold; None with a threshold or with
            `--threshold none`.
    """

    path: Path
    inputs: int
    labels: dict[str, int]
    bad: int
    accepted: int | None
    rejected: dict[str, int] | None
    reason: str | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """File written."""
        return (self.path,)


@stage
def run_predict(config: PredictConfig) -> PredictReport:
    """Predict every input in the order of the inputs.

    The first process writes. The output has the same bytes for any number of processes.

    Raises:
        InputError: If the model or an input cannot be used.
        DataError: If all images are unreadable. The output exists in this case.
        UsageError: If an option does not fit the model, or a zero-shot model has no class names.
        OutputExists: If the output already exists, or another command is writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    device = answering_device(config.device)
    with (
        start_team(device) as team,
        Output.claim(config, [config.out], writes=team.leads) as output,
    ):
        model_file = open_reader(config.model, arch=config.arch, max_length=config.max_length)
        _check_outputs(config, model_file, output)
        warn_of_model(model_file)
        decisions = _decide(config, model_file)
        formatter = decisions.formatter
        known_max, sure_bound = formatter.bounds
        fit = _training_data(config, model_file, decisions, team)
        sources = open_sources(
            [reference for reference in config.data if reference != LINES],
            model_file.header.preprocess,
            workers=config.num_workers,
            skip_bad=config.skip_bad,
        )
        options = {
            "ood_score": formatter.score,
            "threshold": sure_bound[1] if sure_bound else None,
            "top_k": config.top_k,
        }
        made_by = (
            sidecar_step(config, config.out, model_file=model_file, options=options) if team.leads else None
        )
        predictor = _load(config, model_file, decisions, fit, device, team)
        blocks = _blocks(predictor, formatter, sources or _lines(config, model_file), config.batch_size, team)
        if not team.leads:
            deque(blocks, maxlen=0)
        labels: Counter[str] = Counter()
        numbers: Counter[str | None] = Counter()
        streamed = is_stream(config.out)
        columns = {} if streamed else formatter.columns(sources)
        for line in _written(config, blocks, columns, output, made_by) if team.leads else ():
            numbers["inputs"] += 1
            if ERROR in line:
                numbers[ERROR] += 1
                continue
            labels.update(_labels(line))
            if line.get(ACCEPTED) is not None:
                numbers["decided"] += 1
                numbers[ACCEPTED] += line[ACCEPTED]
                numbers[line.get(REASON)] += 1
        if numbers[ERROR] == numbers["inputs"] > 0:
            raise DataError(
                f"{counted(numbers['inputs'], 'input')}, none readable",
                hint=f"read the errors {'above' if streamed else f'in {config.out}'}, and give images that can be read",
            )
        return PredictReport(
            path=config.out,
            inputs=numbers["inputs"],
            labels=dict(sorted(labels.items())),
            bad=numbers[ERROR],
            accepted=numbers[ACCEPTED] if numbers["decided"] else None,
            rejected={reason: numbers[reason] for reason in (UNKNOWN, UNSURE)} if known_max else None,
            reason=decisions.reason,
        )


def _check_outputs(config: PredictConfig, model_file: OpenModel, output: Output) -> None:
    references = [reference for reference in config.data if reference != LINES]
    output.check(
        config.out,
        models=[model_file],
        data=[DataRef.parse(reference) for reference in references if image_path(reference) is None],
        files=[
            config.naming.file,
            config.threshold if isinstance(config.threshold, Path) else None,
            *map(image_path, references),
        ],
        sidecars=config.if_changed,
    )


class PredictSettings(NamedTuple):
    """Settings derived from the options and the header of the model.

    Attributes:
        formatter: Format of the lines.
        classes: Classes of a zero-shot model; None for other models.
        report: Report with the threshold, if given.
        reason: Why there is no threshold, and how to get a threshold; None with a threshold or with
            `--threshold none`.
    """

    formatter: LineFormatter
    classes: Classes | None
    report: Report | None
    reason: str | None


def _decide(config: PredictConfig, model_file: OpenModel) -> PredictSettings:
    """Choose classes, OOD score, threshold and prediction sets.

    Raises:
        UsageError: If a zero-shot model has no classes, other models are given classes, or the threshold is
            for another OOD score than `--ood-score`.
        InputError: If a report has no threshold, or belongs to another model.
    """
    header = model_file.header
    classes = config.naming.classes(model_file)
    names = classes.names if classes else header.class_names
    if not names:
        raise UsageError(
            f"{model_file.reference}: has no class names yet", hint="give them: `--classes cat,dog`"
        )
    if header.architecture.task.by_word:
        progress.step(f"{model_file.reference}: {tag_scheme(names)}")
    stored = header.prompting and classes and (header.labels, header.prompting.templates)
    others_asked = stored and stored != (classes and (classes.names, classes.templates))
    stored_fits = {
        "threshold is": header.threshold or header.known_test,
        "prediction sets are": header.prediction_sets,
        "feature-based OOD scores are": header.fitted if others_asked else None,
    }
    lapsed = next((subject for subject, fit in stored_fits.items() if fit is not None), None)
    if lapsed and (others_asked or config.max_length is not None):
        progress.warn(
            f"{model_file.reference}: its {lapsed} valid only for the {'classes' if others_asked else 'length of texts'} "
            "that it stores, and not applied"
        )
        header = with_class_names(header, classes).model_copy(
            update=dict.fromkeys(("threshold", "known_test", "prediction_sets"))
        )
    report = None
    if isinstance(config.threshold, Path):
        report = Report.from_json(read_text(config.threshold), place=str(config.threshold))
    tests = header if report is None else _reported(report, str(config.threshold), model_file)
    score, bounds = _bounds(config, model_file, header, tests)
    _check_fitted(config, model_file.reference, header, score)
    reason = None
    if bounds == NO_BOUNDS and not isinstance(config.threshold, float):
        reason = (
            f"{model_file.reference}: `{ACCEPTED}` is null: {tests.threshold.summary}"
            if tests.threshold
            else f"{model_file.reference}: stores no threshold, so predictions have no column `accepted`; `hydractl eval "
            f"{shlex.quote(model_file.reference)} --data HELD_OUT --threshold-for 'risk<=0.05' --save-model PATH` stores one"
        )
        (progress.warn if tests.threshold else progress.step)(reason)
    formatter = LineFormatter(
        header=model_file.header,
        names=names,
        top_k=config.top_k,
        score=score,
        bounds=bounds,
        decides=bounds != NO_BOUNDS or bool(tests.threshold and reason),
        sets=header.prediction_sets,
        skips_bad=config.skip_bad,
    )
    return PredictSettings(formatter, classes, report, reason)


def _check_fitted(config: PredictConfig, name: str, header: Header, score: str) -> None:
    """Check that a feature-based OOD score is fitted exactly once: in the checkpoint or with `--train`."""
    task = header.architecture.task
    if is_fitted(score) and not task.has_one_question:
        raise UsageError(
            f"`--ood-score {score}`: compares features of classes, but {name} answers {task.labels}",
            hint="use an OOD score of logits, such as `--ood-score energy`",
        )
    is_stored = score in (header.fitted.scores if header.fitted else ())
    if not is_fitted(score) and config.train is not None:
        raise UsageError(
            f"`--train` has no effect: the OOD score `{score}` is not feature-based",
            hint=f"leave it out, or add `--ood-score {RELATIVE}`",
        )
    if is_stored and config.train is not None:
        raise UsageError(
            f"`--train`: {name} already stores a fitted `{score}`",
            hint="leave it out; `hydractl eval ... --train DATA --save-model PATH` stores a new one",
        )
    if is_fitted(score) and not is_stored and config.train is None:
        raise UsageError(
            f"{name}: `{score}` is feature-based and was not fitted for this model",
            hint=f"store it: `hydractl eval {shlex.quote(name)} --data TEST --ood-score {score} --train TRAIN"
            + (
                " --val VAL --save-model PATH`"
                if score == ENERGY_DENSITY
                else " --save-model PATH`; or add `--train TRAIN`"
            ),
        )


def _bounds(
    config: PredictConfig, model_file: OpenModel, header: Header, tests: Header | Row
) -> tuple[str, Bounds]:
    """Return the OOD score of the lines, and the bounds that accept inputs.

    The score is the score of the test of known inputs, if there is this test. `tests` are used if `--threshold`
    has no number.
    """
    bound, default = config.threshold, default_score(header)
    test = tests.known_test or tests.threshold
    if isinstance(bound, float):
        score = config.ood_score or (test.score if test else default)
        check_bound(score, bound)
        return score, NO_BOUNDS if bound == NO_THRESHOLD else Bounds(sure_bound=(score, bound))
    if test is None:
        return config.ood_score or default, NO_BOUNDS
    if config.ood_score not in {None, test.score}:
        raise UsageError(
            f"`--ood-score {config.ood_score}`: the threshold is for `{test.score}`",
            hint="leave it out, or add `--threshold X` or `--threshold none`",
        )
    check_tests(
        tests.known_test, tests.threshold, place=model_file.reference if bound is None else str(bound)
    )
    return test.score, Bounds.of(tests.known_test, tests.threshold)


def _reported(report: Report, path: str, model_file: OpenModel) -> Row:
    """Return the row of a model in a report, with its tests."""
    digest = model_file.checkpoint.digest
    row = report.row_of(digest, digest_weights(model_file.checkpoint, model_file.header))
    of_fit = row and any(test and is_fitted(test.score) for test in (row.known_test, row.threshold))
    # a copy of the model may store a score from another fit
    if row is None or (of_fit and row.models[0].sha256 != digest):
        raise InputError(
            f"{path}: is not a report of {model_file.reference}, or the model has changed since",
            hint=f"`hydractl eval {shlex.quote(model_file.reference)} --data HELD_OUT --threshold-for 'risk<=0.05' -o report.json` "
            "writes a report of it",
        )
    if row.threshold is None and row.known_test is None:
        raise InputError(
            f"{path}: has no threshold for `{row.name}`",
            hint="`hydractl eval ... --threshold-for 'risk<=0.01'`",
        )
    stored = model_file.header.scale
    if not stored.is_close(row.scale):
        raise InputError(
            f"{path}: its threshold is for the temperature {row.scale}, but {model_file.reference} stores {stored}",
            hint="store both together: `hydractl eval ... --save-model PATH`",
        )
    if row.label_thresholds and row.label_thresholds != model_file.header.label_thresholds:
        raise InputError(
            f"{path}: its threshold is for label thresholds that {model_file.reference} does not store",
            hint="store both together: `hydractl eval ... --save-model PATH`",
        )
    return row


def _training_data(
    config: PredictConfig, model_file: OpenModel, decisions: PredictSettings, team: ProcessGroup
) -> FitOn | None:
    """Open the data of `--train`, or return None without this option.

    Raises:
        DataError: If the data cannot be used or have no labels.
        InputError: If `--threshold` is a report with a score fitted on other data.
    """
    if config.train is None:
        return None
    items = open_items(config.train, model_file.header.preprocess, workers=config.num_workers)
    labels, _ = labels_of(
        model_file, items, decisions.classes, option="--train", hint="give labelled training data"
    )
    if decisions.report is not None:
        sha256, fitted = items.fingerprint(digests(items, team)), decisions.report.data.get(FIT)
        if fitted is None:
            raise InputError(
                f"{config.threshold}: its threshold is for the fitted OOD score that its model stores",
                hint="leave out `--train` and use that model",
            )
        if fitted.sha256 != sha256:
            raise InputError(
                f"{config.threshold}: its threshold is for an OOD score that was fitted on "
                f"`{fitted.reference}`, but `--train {items.name}` has other samples",
                hint="give the same data with `--train`",
            )
    batch_share = BatchShare(team.rank, team.world)
    inputs = PreparedData(
        items, batch_size=config.batch_size, limit_bytes=0, name=FIT, batch_share=batch_share
    )
    return FitOn(inputs, labels)


def _load(
    config: PredictConfig,
    model_file: OpenModel,
    decisions: PredictSettings,
    fit: FitOn | None,
    device: torch.device,
    team: ProcessGroup,
) -> Predictor:
    dtype = torch_dtype(config.dtype) if config.dtype else None
    (predictor,) = load_predictors([model_file], device=device, dtype=dtype, classes=decisions.classes)
    formatter = decisions.formatter
    scores = {formatter.score, *(bound[0] for bound in formatter.bounds if bound)}
    return with_ood_scores(predictor, model_file, [*filter(is_fitted, scores)], fit, team)


def _blocks(
    predictor: Predictor,
    formatter: LineFormatter,
    sources: Iterable[Source],
    batch_size: int,
    team: ProcessGroup,
) -> Iterator[list[Line]]:
    """Yield the lines of each source in blocks. Processes that do not write yield empty lists."""
    batches = sum(-(-len(s.items) // batch_size) for s in sources) if isinstance(sources, list) else 0
    total = -(-batches // team.world)
    ticks = iter(progress.track(range(total), label=predictor.name, total=total))
    for source in sources:
        for places, responses, bad, words in answer_blocks(predictor, source.items, batch_size, team, ticks):
            yield formatter.lines(source, places, responses, bad, words) if team.leads else []
    deque(ticks, maxlen=0)


def _lines(config: PredictConfig, model_file: OpenModel) -> Iterator[Source]:
    items = None
    crew = WorkerPool.of(config.num_workers, images=0)
    preprocess, size = model_file.header.preprocess, window(config.batch_size)
    for items in lines(preprocess, size=size, workers=crew, null=config.null):
        yield Source(None, accept_unreadable(items) if config.skip_bad else items)
    if items is None:
        raise DataError("standard input: has no lines")


def _written(
    config: PredictConfig,
    blocks: Iterator[list[Line]],
    columns: dict[str, type],
    output: Output,
    made_by: Step | None,
) -> Iterator[Line]:
    """Write lines and yield them.

    A stream receives every block at once. A file is written in blocks of at least `AT_ONCE` lines, with its
    provenance in a sidecar.
    """
    if is_stream(config.out):
        with output.publish() as begin:
            stream = JSONLines(file := begin(config.out), {})
            for lines in blocks:
                stream.write(lines)
                file.flush()
                yield from lines
        return
    with (
        output.publish() as begin,
        closing(
            WRITERS[config.form](begin(config.out, made_by=made_by), columns)
        ) as writer,  # closes the Parquet writer also after an error
    ):
        pending: list[Line] = []
        for lines in blocks:
            pending += lines
            if len(pending) >= AT_ONCE:
                writer.write(pending)
                yield from pending
                pending = []
        writer.write(pending)
        yield from pending


def _labels(line: Line) -> list[str]:
    if ENTITIES in line:
        return [entity["label"] for entity in line[ENTITIES]]
    return line[LABELS] if LABELS in line else [line["label"]]
