"""predict: writes labels, confidence and OOD scores of inputs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat, takewhile
from pathlib import Path
from typing import TypeAlias

import torch

from hydractl.data.encode import lenient
from hydractl.data.worker_pool import WorkerPool
from hydractl.errors import DataError
from hydractl.families.load import OpenModel
from hydractl.fusion.build import load_any
from hydractl.manifest.header import Step
from hydractl.messages import counted
from hydractl.output.atomic_write import is_stream, publish, publish_together
from hydractl.output.locks import OutputLock
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_text, torch_dtype
from hydractl.stages.predict.config import LINES, PredictConfig, image_path, parsed
from hydractl.stages.predict.fit_scores import FeatureScore
from hydractl.stages.predict.journal import PredictJournal, open_journal
from hydractl.stages.predict.rows import RowFormatter
from hydractl.stages.predict.sources import Source, lines, open_sources
from hydractl.stages.predict.stream import Answered, BatchPredictor, window
from hydractl.stages.predict.writers import ACCEPTED, ENTITIES, ERROR, LABELS, WRITERS, JSONLines, Line
from hydractl.stages.shared.open_inputs import open_reader, warn
from hydractl.stages.shared.output_record import begin_with_sidecar, check_sidecar, sidecar_step
from hydractl.stages.shared.outputs import check_outputs, claim, resumable
from hydractl.stages.shared.predictions import fits
from hydractl.stages.shared.zero_shot_classes import settle
from hydractl.strict_json import compact, parse
from hydractl.training.resume import FORCED, OTHERS, OtherRunError
from hydractl.training.run_settings import texts_of
from hydractl.version import __version__

_Block: TypeAlias = tuple[list[Line], Answered]
"""Consecutive lines and the inputs that they belong to."""


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
        resumed_from: Number of lines from an interrupted run.
    """

    path: Path
    inputs: int
    labels: dict[str, int]
    bad: int
    accepted: int | None
    reason: str | None
    resumed_from: int

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

    Lines of a file are first written to a journal, from which an interrupted run resumes. The output has the same bytes
    after a resumption and with any number of processes, of which the first writes.

    Raises:
        InputError: If the model or an input cannot be used, or no image can be read; these are in the output.
        OutputExists: If the output or the journal of another run already exists, or another command is writing it.
        Interrupted: If another process of the run ended unexpectedly.
    """
    device = answering_device(config.device)
    with (
        resumable(config.out, force=config.force),
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
        data=[parsed(reference) for reference in references if image_path(reference) is None],
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
        self.score = FeatureScore.open(config, opened, self.rows, team, progress)
        self.counts = _Counts()
        self.sources: list[Source] = []
        if config.data != (LINES,):
            self.sources = [*map(self._lenient, open_sources(config, opened.header.preprocess, progress))]

    def write(self, device: torch.device, lock: OutputLock) -> PredictReport:
        """Write a line an input; the model is loaded when everything else has been looked at."""
        config, leads = self.config, self.team.leads
        made_by = self._made_by() if leads else None  # of what lies there now
        journal, completed = None, [0 for _ in self.sources]
        if leads and not is_stream(config.out):
            journal, completed = self._journal(completed)
        completed = parse(self.team.broadcast(compact(completed)))
        resumed_from = sum(completed)
        if resumed_from:
            self.progress.step(f"Resuming an interrupted run after {counted(resumed_from, 'line')}")
        blocks = self._blocks(device, completed)
        if journal is not None:
            self._write_file(journal, blocks, lock, made_by)
        elif leads:
            self._write_stream(blocks, lock)
        else:
            deque(blocks, maxlen=0)
        if self.counts.bad == self.counts.inputs > 0:
            raise DataError(
                f"{counted(self.counts.inputs, 'input')}, none readable",
                hint=f"read the errors in {config.out}",
            )
        return PredictReport(
            path=config.out,
            inputs=self.counts.inputs,
            labels=dict(sorted(self.counts.labels.items())),
            bad=self.counts.bad,
            accepted=self.counts.accepted,
            reason=self.rows.reason,
            resumed_from=resumed_from,
        )

    def _made_by(self) -> Step | None:
        config = self.config
        options = {"ood_score": self.rows.score, "threshold": self.rows.below, "top_k": config.top_k}
        return sidecar_step(config, config.out, opened=self.opened, options=options)

    def _write_stream(self, blocks: Iterator[_Block], lock: OutputLock) -> None:
        """Write lines as they come."""
        with publish(self.config.out, lock) as file:
            writer = JSONLines(file, {})
            for lines, _ in blocks:
                writer.write(lines)
                file.flush()
                self.counts.add(lines)

    def _write_file(
        self, journal: PredictJournal, blocks: Iterator[_Block], lock: OutputLock, made_by: Step | None
    ) -> None:
        """Write a file by way of its journal, and beside it what made it, if that is wanted."""
        try:
            for lines, answered in blocks:
                journal.record(lines, answered.items, answered.places)
        except BaseException:
            if not self.sources:  # what came on standard input does not come again
                journal.discard()
            raise
        out = self.config.out
        with publish_together(lock) as begin, begin_with_sidecar(begin, out, made_by) as file:
            writer = WRITERS[self.config.form](file, self.rows.columns(self.sources))
            for lines in journal.replay():
                writer.write(lines)
                self.counts.add(lines)
            writer.close()
        journal.discard()

    def _journal(self, nothing_done: list[int]) -> tuple[PredictJournal, list[int]]:
        """Return the journal, and how many items of each source are completed."""
        options = self.rows.options() | (self.score.options() if self.score else {})
        run = {"told": options, "data": [s.name for s in self.sources], "hydractl": __version__}
        strict = run | {
            "told": options | {"skip_bad": False}
        }  # whose lines are those of a run that skips, too
        fingerprint, subsumed = digest_text(compact(run)), digest_text(compact(strict))
        settings = texts_of(options | {"data": run["data"], "hydractl": __version__})
        opened = partial(
            open_journal, self.config.out, fingerprint, settings, subsumed=subsumed, progress=self.progress
        )
        try:
            journal = opened(anew=FORCED if self.config.force or not self.sources else None)
            return journal, journal.check([source.items for source in self.sources])
        except OtherRunError:
            if not self.config.if_changed:
                raise
            return opened(anew=OTHERS), nothing_done

    def _blocks(self, device: torch.device, completed: list[int]) -> Iterator[_Block]:
        """Yield the lines of each source but those of the items that are completed, and what they are of."""
        with self._ticking(sum(completed)) as ticks:
            predictor = self._load(device, ticks)
            starts = (
                zip(self.sources, completed, strict=True) if self.sources else zip(self._lines(), repeat(0))
            )
            for source, start in starts:
                for answered in predictor.answers(source.items, start=start):
                    yield self.rows.lines(source, answered) if self.team.leads else [], answered

    @contextmanager
    def _ticking(self, completed: int) -> Iterator[Iterator[object]]:
        """Give what moves a bar on with each of this process's batches, of those that are left after `completed` items."""
        size, world = self.config.batch_size, self.team.world
        lengths = [s.most for s in self.sources]
        batches = [-(-length // size) for length in lengths if length is not None]
        total = -(-(sum(batches) - completed // size) // world) if len(batches) == len(lengths) else None
        ended: list[bool] = []
        steps = range(total) if total is not None else takewhile(lambda _: not ended, count())
        ticks = iter(self.progress.track(steps, label=f"{self.opened.reference}", total=total))
        yield ticks
        ended.append(True)
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
        return BatchPredictor(
            model=self.score.of(model, self.team, self.progress) if self.score else model,
            device=model.device,
            how=opened.header.preprocess,
            name=opened.reference,
            batch_size=config.batch_size,
            team=self.team,
            ticks=ticks,
        )
