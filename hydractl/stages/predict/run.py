"""predict: what does a model say of every input, and how sure is it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import NamedTuple

import torch

from hydractl.claims import Claim
from hydractl.data.crew import Crew
from hydractl.data.inputs import lenient
from hydractl.data.items import Items
from hydractl.errors import DataError, UnreadableError
from hydractl.families.opening import OpenModel
from hydractl.families.tower import Towers
from hydractl.fusion.building import load_any
from hydractl.fusion.detecting import Detecting
from hydractl.fusion.features import Watched
from hydractl.jsonfile import compact, parse
from hydractl.manifest.header import Step
from hydractl.parallel import Team, answering_device, start_team
from hydractl.progress import SILENT, Progress
from hydractl.publish import is_stream, publish, publish_together
from hydractl.runtime import digest_text, torch_dtype
from hydractl.stages.predict.config import LINES, PredictConfig, image_path, parsed
from hydractl.stages.predict.fit_scores import Fit, beside, held
from hydractl.stages.predict.journal import Journal, open_journal
from hydractl.stages.predict.writers import ACCEPTED, ERROR, WRITERS, JSONLines, Line
from hydractl.stages.predict.sources import Source, lines, open_sources
from hydractl.stages.predict.stream import Answered, Asked, window
from hydractl.stages.predict.rows import Teller
from hydractl.stages.shared.classes import settle
from hydractl.stages.shared.lineage import recorded
from hydractl.stages.shared.made import begun, check_record
from hydractl.stages.shared.outputs import check_outputs, claim, resumable
from hydractl.stages.shared.predictions import fits
from hydractl.stages.shared.reading import open_reader, warn
from hydractl.stages.shared.unchanged import replaces
from hydractl.training.run_settings import texts_of
from hydractl.training.state import FORCED, OTHERS, OtherRunError
from hydractl.version import __version__
from hydractl.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictReport:
    """What `predict` told.

    Attributes:
        path: Where; `-` is standard output.
        inputs: How many there were.
        labels: How often each class is the most probable.
        bad: How many images could not be read.
        accepted: How many the threshold accepts, where there is one.
        resumed_from: How many lines an earlier run had done.
    """

    path: Path
    inputs: int
    labels: dict[str, int]
    bad: int
    accepted: int | None
    resumed_from: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file written."""
        return (self.path,)


@dataclass(kw_only=True)
class _Counted:
    """What has been told."""

    labels: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    accepted: int | None = None

    def add(self, some: Sequence[Line]) -> None:
        self.labels.update(line["label"] for line in some if ERROR not in line)
        self.bad += sum(ERROR in line for line in some)
        if any(ACCEPTED in line for line in some):
            self.accepted = (self.accepted or 0) + sum(line.get(ACCEPTED, False) for line in some)


class _Block(NamedTuple):
    """Consecutive lines, and what they are of."""

    told: list[Line]
    items: Items
    places: range


def run_predict(config: PredictConfig, progress: Progress = SILENT) -> PredictReport:
    """Tell of every input what a model says, in the order of the inputs.

    Lines for a file are kept in a journal beside it: interrupted and started again, the run goes on where it was and ends
    with the same bytes; and so it does with any number of processes, of which the first writes.

    Raises:
        InputError: If the model, or an input, cannot be used.
        OutputExists: If the output is there already, or what another run left of it, or another command makes it.
        Interrupted: If another process of the run ended before its time.
    """
    device = answering_device(config.device)
    with (
        resumable(config.out, force=config.force),
        start_team(device) as team,
        claim([config.out] * team.leads, progress, force=replaces(config), wait=config.wait) as own,
    ):
        opened = open_reader(config.model, arch=config.arch, max_length=config.max_length)
        if team.leads:
            _check_outputs(config, opened, own)
        warn(opened, progress)
        return _Run(config, opened, Teller.of(config, opened, progress), team, progress).done(device, own)


def _check_outputs(config: PredictConfig, opened: OpenModel, own: Claim) -> None:
    if config.if_changed:
        check_record(config.out)
    named = [given for given in config.data if given != LINES]
    check_outputs(
        [config.out],
        force=own.may_replace,
        models=[opened],
        data=[parsed(given) for given in named if image_path(given) is None],
        files=[
            config.naming.file,
            config.threshold if isinstance(config.threshold, Path) else None,
            *map(image_path, named),
        ],
    )


class _Run:
    """One run, in one of its processes; `form` is that of its output."""

    def __init__(
        self, config: PredictConfig, opened: OpenModel, teller: Teller, team: Team, progress: Progress
    ) -> None:
        self.config, self.opened, self.teller = config, opened, teller
        self.team, self.progress = team, progress
        self.fit = Fit.of(config, opened, teller, team, progress)
        self.held = held(opened, teller, self.fit)
        self.counted = _Counted()
        self.form = config.form
        how = opened.header.preprocess
        self.sources: list[Source] = []
        if config.data != (LINES,):
            self.sources = [self._lenient(s) for s in open_sources(config, how, progress)]

    def done(self, device: torch.device, own: Claim) -> PredictReport:
        """Do it; the model is loaded when everything else has been looked at."""
        config = self.config
        made_by = None
        if self.team.leads:  # of what lies there now
            told = {"ood_score": self.teller.score, "threshold": self.teller.below, "top_k": config.top_k}
            made_by = recorded(config, config.out, opened=self.opened, options=told)
        journal, done = None, [0 for _ in self.sources]
        if self.team.leads and not is_stream(config.out):
            journal, done = self._journal(done)
        done = parse(self.team.told(compact(done)))
        begun = sum(done)
        if begun:
            self.progress.step(f"Going on after {counted(begun, 'line')} of an interrupted run")
        blocks = self._blocks(device, done)
        if journal is not None:
            self._write(journal, blocks, own, made_by)
        elif self.team.leads:
            with publish(config.out, own) as file:
                writer = JSONLines(file, {})
                for block in blocks:
                    writer.write(block.told)
                    file.flush()
                    self.counted.add(block.told)
        else:
            for _ in blocks:
                pass
        return PredictReport(
            path=config.out,
            inputs=self.counted.labels.total() + self.counted.bad,
            labels=dict(sorted(self.counted.labels.items())),
            bad=self.counted.bad,
            accepted=self.counted.accepted,
            resumed_from=begun,
        )

    def _write(self, journal: Journal, blocks: Iterator[_Block], own: Claim, made_by: Step | None) -> None:
        """Write a file by way of its journal, and beside it what made it, if that is wanted."""
        try:
            for block in blocks:
                journal.record(block.told, block.items, block.places)
        except BaseException:
            if not self.sources:  # what came on standard input does not come again
                journal.discard()
            raise
        out = self.config.out
        with publish_together(own) as begin, begun(begin, out, made_by) as file:
            writer = WRITERS[self.form](file, self.teller.columns(self.sources))
            for some in journal.replay():
                writer.write(some)
                self.counted.add(some)
            writer.close()
        journal.discard()

    def _journal(self, none: list[int]) -> tuple[Journal, list[int]]:
        """Return the journal, and how many items of each source are done."""
        told = self.teller.options() | (self.fit.options() if self.fit else {})
        shaped = {"told": told, "data": [s.name for s in self.sources], "hydractl": __version__}
        strict = shaped | {
            "told": told | {"skip_bad": False}
        }  # whose lines are those of a run that skips, too
        own, also = (digest_text(compact(each)) for each in (shaped, strict))
        settings = texts_of(told | {"data": shaped["data"], "hydractl": __version__})
        opened = partial(open_journal, self.config.out, own, settings, also=also, progress=self.progress)
        try:
            journal = opened(anew=FORCED if self.config.force or not self.sources else None)
            return journal, journal.check([source.items for source in self.sources])
        except OtherRunError:
            if not self.config.if_changed:
                raise
            return opened(anew=OTHERS), none

    def _blocks(self, device: torch.device, done: list[int]) -> Iterator[_Block]:
        """Yield the lines of each source but those of the items that are done."""
        with self._ticking(sum(done)) as ticks:
            asked = self._asked(device, ticks)
            begun = zip(self.sources, done, strict=True) if self.sources else ((s, 0) for s in self._lines())
            for source, start in begun:
                for answered in _with_way_out(asked.answers(source.items, start=start)):
                    told = self.teller.lines(source, answered) if self.team.leads else []
                    yield _Block(told, answered.items, answered.places)

    @contextmanager
    def _ticking(self, begun: int) -> Iterator[Iterator[object]]:
        """Give what moves a bar on with each of this process's batches, of those that are left after `begun` items."""
        size, world = self.config.batch_size, self.team.world
        most = [s.most for s in self.sources]
        known = [-(-items // size) for items in most if items is not None]
        total = -(-(sum(known) - begun // size) // world) if len(known) == len(most) else None
        over: list[bool] = []
        steps = range(total) if total is not None else takewhile(lambda _: not over, count())
        ticks = iter(self.progress.track(steps, label=f"{self.opened.reference}", total=total))
        yield ticks
        over.append(True)
        for _ in ticks:
            pass

    def _lines(self) -> Iterator[Source]:
        empty = True
        crew = Crew.of(self.config.num_workers, images=0)
        how, size = self.opened.header.preprocess, window(self.config.batch_size)
        for items in lines(how, size=size, crew=crew, null=self.config.null):
            empty = False
            yield self._lenient(Source(None, items))
        if empty:
            raise DataError("standard input: holds no line")

    def _lenient(self, source: Source) -> Source:
        return Source(source.name, lenient(source.items)) if self.config.skip_bad else source

    def _asked(self, device: torch.device, ticks: Iterator[object]) -> Asked:
        config, opened = self.config, self.opened
        with fits(opened.reference, device):
            model = load_any(opened, dtype=torch_dtype(config.dtype) if config.dtype else None).to(device)
        settle(model, opened, self.teller.classes)
        return Asked(
            model=model,
            how=opened.header.preprocess,
            name=opened.reference,
            batch_size=config.batch_size,
            team=self.team,
            ticks=ticks,
            beside=self._beside(model),
        )

    def _beside(self, model: Towers) -> Detecting | None:
        """Return the model beside the score that is told, if that is one of features: as it is held, or fitted now."""
        opened = self.opened
        if self.held is not None:
            watched = Watched.of(model, opened.family, name=opened.reference)
            return self.held.of(watched, name=opened.reference)
        if self.fit is None:
            return None
        told = self.teller.score, self.fit
        return beside(self.config, opened, model, told, self.team, self.progress)


def _with_way_out(answers: Iterator[Answered]) -> Iterator[Answered]:
    """Yield answers; an image that cannot be read ends them with what to type instead."""
    try:
        yield from answers
    except UnreadableError as error:
        others = f"{error.hint}, or " if error.hint else ""
        raise DataError(
            error.message, hint=f"{others}add `--skip-bad` to be told of it in its line"
        ) from error
