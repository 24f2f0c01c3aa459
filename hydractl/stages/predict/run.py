"""predict: writes labels, confidence and OOD scores of inputs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hydractl.data.encode import lenient, open_items
from hydractl.data.reference import DataRef
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError, InputError
from hydractl.families.load import OpenModel
from hydractl.fusion.build import load_any
from hydractl.fusion.prompts import settle
from hydractl.manifest.header import Step
from hydractl.messages import counted
from hydractl.metrics.ood_scores import is_fitted
from hydractl.metrics.registry import FIT
from hydractl.output.publish import OutputLock, is_stream, publish, publish_together
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import torch_dtype
from hydractl.stages.predict.config import LINES, PredictConfig, image_path
from hydractl.stages.predict.rows import RowFormatter
from hydractl.stages.predict.sources import Source, lines, open_sources
from hydractl.stages.predict.stream import BatchPredictor, window
from hydractl.stages.predict.writers import ACCEPTED, ENTITIES, ERROR, LABELS, WRITERS, JSONLines, Line
from hydractl.stages.shared.open_inputs import digests, labels_of, open_reader, warn
from hydractl.stages.shared.outputs import check_outputs, claim
from hydractl.stages.shared.predictions import FitOn, fits, inputs_of, with_ood_scores
from hydractl.stages.shared.provenance import begin_with_sidecar, check_sidecar, sidecar_step

AT_ONCE = 1024
"""Lines in memory at once when a file is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictReport:
    """Result of `predict`.

    Attributes:
        path: Output file; `-` is standard output.
        inputs: Number of inputs.
        labels: Number of predictions of each class, of which an input may have several; or of entities of each label.
        bad: Number of unreadable images; the output has their errors.
        accepted: Number of inputs that the threshold accepts, if there is one.
        reason: Why there is no threshold, and how to get one; None if there is one, or `--threshold none`.
    """

    path: Path
    inputs: int
    labels: dict[str, int]
    bad: int
    accepted: int | None
    reason: str | None

    @property
    def paths(self) -> tuple[Path, ...]:
        """File written."""
        return (self.path,)


@dataclass(kw_only=True)
class _Counts:
    """What lines say in all."""

    labels: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    bad: int = 0
    accepted: int | None = None

    def add(self, lines: Sequence[Line]) -> None:
        answered = [line for line in lines if ERROR not in line]
        self.labels.update(label for line in answered for label in _labels(line))
        self.inputs += len(lines)
        self.bad += len(lines) - len(answered)
        decisions = [line[ACCEPTED] for line in lines if line.get(ACCEPTED) is not None]
        if decisions:
            self.accepted = (self.accepted or 0) + sum(decisions)


def _labels(line: Line) -> list[str]:
    """Return the labels that a line tells."""
    if ENTITIES in line:
        return [entity["label"] for entity in line[ENTITIES]]
    return line[LABELS] if LABELS in line else [line["label"]]


def run_predict(config: PredictConfig, progress: Progress = SILENT) -> PredictReport:
    """Predict every input, in the order of the inputs.

    The first process writes. The output has the same bytes with any number of processes.

    Raises:
        InputError: If the model or an input cannot be used, or no image can be read; these are in the output.
        OutputExists: If the output already exists, or another command is writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    device = answering_device(config.device)
    with (
        start_team(device) as team,
        claim(config, [config.out] * team.leads, progress) as lock,
    ):
        opened = open_reader(config.model, arch=config.arch, max_length=config.max_length)
        if team.leads:
            _check_outputs(config, opened, lock)
        warn(opened, progress)
        return _Run(config, opened, team, progress).write(device, lock)


def _check_outputs(config: PredictConfig, opened: OpenModel, lock: OutputLock) -> None:
    if config.if_changed:
        check_sidecar(config.out)
    references = [reference for reference in config.data if reference != LINES]
    check_outputs(
        [config.out],
        force=lock.may_replace,
        models=[opened],
        data=[DataRef.parse(reference) for reference in references if image_path(reference) is None],
        files=[
            config.naming.file,
            config.threshold if isinstance(config.threshold, Path) else None,
            *map(image_path, references),
        ],
    )


class _Run:
    """One run, in one of its processes."""

    def __init__(
        self, config: PredictConfig, opened: OpenModel, team: ProcessGroup, progress: Progress
    ) -> None:
        self.config, self.opened, self.team, self.progress = config, opened, team, progress
        self.rows = RowFormatter.of(config, opened, progress)
        self.training = training_data(config, self.rows, team, progress)
        self.counts = _Counts()
        self.sources: list[Source] = []
        if config.data != (LINES,):
            self.sources = [*map(self._lenient, open_sources(config, opened.header.preprocess, progress))]

    def write(self, device: torch.device, lock: OutputLock) -> PredictReport:
        """Write a line an input; the model is loaded when everything else has been looked at."""
        config, leads = self.config, self.team.leads
        made_by = self._made_by() if leads else None  # of what lies there now
        blocks = self._blocks(device)
        if not leads:
            deque(blocks, maxlen=0)
        elif is_stream(config.out):
            self._write_stream(blocks, lock)
        else:
            self._write_file(blocks, lock, made_by)
        if self.counts.bad == self.counts.inputs > 0:
            raise DataError(
                f"{counted(self.counts.inputs, 'input')}, none readable",
                hint=f"read the errors {'above' if is_stream(config.out) else f'in {config.out}'}, and give images that can be read",
            )
        return PredictReport(
            path=config.out,
            inputs=self.counts.inputs,
            labels=dict(sorted(self.counts.labels.items())),
            bad=self.counts.bad,
            accepted=self.counts.accepted,
            reason=self.rows.reason,
        )

    def _made_by(self) -> Step | None:
        config = self.config
        options = {"ood_score": self.rows.score, "threshold": self.rows.below, "top_k": config.top_k}
        return sidecar_step(config, config.out, opened=self.opened, options=options)

    def _write_stream(self, blocks: Iterator[list[Line]], lock: OutputLock) -> None:
        """Write lines as they come."""
        with publish(self.config.out, lock) as file:
            writer = JSONLines(file, {})
            for lines in blocks:
                writer.write(lines)
                file.flush()
                self.counts.add(lines)

    def _write_file(self, blocks: Iterator[list[Line]], lock: OutputLock, made_by: Step | None) -> None:
        """Write a file, and beside it what made it, if that is wanted."""
        out = self.config.out
        columns = self.rows.columns(self.sources)
        with (
            publish_together(lock) as begin,
            begin_with_sidecar(begin, out, made_by) as file,
            closing(WRITERS[self.config.form](file, columns)) as writer,  # an interrupted Parquet writer, too
        ):
            for lines in _merged(blocks):
                writer.write(lines)
                self.counts.add(lines)

    def _blocks(self, device: torch.device) -> Iterator[list[Line]]:
        """Yield the lines of each source, some at a time; empty lists in processes that do not write."""
        with self._ticking() as ticks:
            predictor = self._load(device, ticks)
            for source in self.sources or self._lines():
                for answered in predictor.answers(source.items):
                    yield self.rows.lines(source, answered) if self.team.leads else []

    @contextmanager
    def _ticking(self) -> Iterator[Iterator[object]]:
        """Give what moves a bar on with each of this process's batches."""
        size, world = self.config.batch_size, self.team.world
        total = -(-sum(-(-len(source.items) // size) for source in self.sources) // world)
        ticks = iter(self.progress.track(range(total), label=f"{self.opened.reference}", total=total))
        yield ticks
        deque(ticks, maxlen=0)

    def _lines(self) -> Iterator[Source]:
        items = None
        crew = WorkerPool.of(self.config.num_workers, images=0)
        how, size = self.opened.header.preprocess, window(self.config.batch_size)
        for items in lines(how, size=size, crew=crew, null=self.config.null):
            yield self._lenient(Source(None, items))
        if items is None:
            raise DataError("standard input: has no lines")

    def _lenient(self, source: Source) -> Source:
        return Source(source.name, lenient(source.items)) if self.config.skip_bad else source

    def _load(self, device: torch.device, ticks: Iterator[object]) -> BatchPredictor:
        config, opened = self.config, self.opened
        with fits(opened.reference, device):
            model = load_any(opened, dtype=torch_dtype(config.dtype) if config.dtype else None).to(device)
        settle(model, opened, self.rows.classes)
        scores = [self.rows.score] if is_fitted(self.rows.score) else []
        predictor = with_ood_scores(model, opened, scores, self.training, self.team, self.progress)
        return BatchPredictor(predictor=predictor, batch_size=config.batch_size, team=self.team, ticks=ticks)


def _merged(blocks: Iterator[list[Line]]) -> Iterator[list[Line]]:
    """Yield the lines of all blocks, at least `AT_ONCE` at a time, and the rest last."""
    lines: list[Line] = []
    for block in blocks:
        lines += block
        if len(lines) >= AT_ONCE:
            yield lines
            lines = []
    yield lines


def training_data(
    config: PredictConfig, rows: RowFormatter, team: ProcessGroup, progress: Progress
) -> FitOn | None:
    """Open the data of `--fit`, None if it is not given.

    Raises:
        DataError: If the data cannot be used, or have no labels.
        InputError: If `--threshold` is a report whose score was fitted on other data.
    """
    if config.fit is None:
        return None
    items = open_items(
        config.fit, rows.opened.header.preprocess, workers=config.num_workers, progress=progress
    )
    labels, _ = labels_of(
        rows.opened, items, rows.classes, progress, option="--fit", hint="give labelled training data"
    )
    if rows.report is not None:
        sha256, fitted = items.fingerprint(digests(items, team)), rows.report.data.get(FIT)
        if fitted is None:
            raise InputError(
                f"{config.threshold}: its threshold is for the fitted OOD score that its model stores",
                hint="leave out `--fit` and use that model",
            )
        if fitted.sha256 != sha256:
            raise InputError(
                f"{config.threshold}: its threshold is for an OOD score that was fitted on "
                f"`{fitted.reference}`, but `--fit {items.name}` has other samples",
                hint="give the same data with `--fit`",
            )
    return FitOn(inputs_of(items, name=FIT, batch_size=config.batch_size, team=team), labels)
