"""predict: writes labels, confidence and OOD scores of inputs."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from hydractl import progress
from hydractl.data.batches import BATCHES, Batch, BatchShare
from hydractl.data.datasets import Items, TextSet
from hydractl.data.encode import encoded, lenient, open_items
from hydractl.data.reference import DataRef
from hydractl.data.words import Span, by_word, whole_words
from hydractl.data.worker_pool import WorkerPool, cores
from hydractl.errors import DataError, InputError
from hydractl.families.load import OpenModel
from hydractl.fusion.hydra import load_any
from hydractl.manifest.header import Step, Tokenization
from hydractl.messages import counted
from hydractl.metrics.ood_scores import is_fitted
from hydractl.metrics.per_sample import Responses, in_memory
from hydractl.metrics.registry import FIT
from hydractl.model_inputs import Inputs
from hydractl.output.publish import is_stream
from hydractl.prediction.answers import inputs_of
from hydractl.prediction.class_names import settle
from hydractl.prediction.feature_ood import FitOn, Predictor, with_ood_scores
from hydractl.prediction.inference import collected, fits
from hydractl.prediction.open_inputs import digests, labels_of, open_reader, warn
from hydractl.processes.distributed import ProcessGroup, answering_device, start_team
from hydractl.progress import stage
from hydractl.provenance.output import Output, sidecar_step
from hydractl.runtime import torch_dtype
from hydractl.stages.predict.config import LINES, PredictConfig, image_path
from hydractl.stages.predict.rows import RowFormatter
from hydractl.stages.predict.sources import Source, lines, open_sources
from hydractl.stages.predict.writers import ACCEPTED, ENTITIES, ERROR, LABELS, WRITERS, JSONLines, Line


def window(batch_size: int) -> int:
    """Return how many texts are sorted by length: of single ones none, so that each is answered as it comes."""
    return batch_size * (BATCHES if batch_size > 1 else 1)


Answers = tuple[range, Responses, dict[int, str], list[tuple[str, list[Span]]] | None]
"""Places of items, predictions on them, the reason for each place that is unreadable, and the words of each text if words are answered."""


def answers(
    predictor: Predictor, items: Items, size: int, team: ProcessGroup, ticks: Iterator[object]
) -> Iterator[Answers]:
    """Yield the predictions on a data set, some batches at a time, in every process.

    The content of a batch does not depend on the number of processes.

    Args:
        predictor: The model, on the device of this process.
        items: The data.
        size: Samples per forward pass.
        team: The processes, which share the batches.
        ticks: Advances with each batch of this process.

    Raises:
        InputError: As `respond`.
        DataError: If an item cannot be read.
    """
    fills = predictor.model.device.type == "cpu" and torch.get_num_threads() >= cores()
    deal, how = BatchShare(team.rank, team.world, ahead=not fills), predictor.reads
    stream, step = None, window(size)
    if not isinstance(items, TextSet):
        stream = iter(encoded(items, how, batch_size=size, limit_bytes=0, deal=deal))
        step = size * BATCHES * team.world
    for begin in range(0, len(items), step):
        places = range(begin, min(begin + step, len(items)))
        first, rows, texts, words = begin, items, None, None
        if isinstance(items, TextSet):
            first, rows = 0, (texts := items.subset(places))
            if isinstance(how, Tokenization) and how.by_word:
                rows = words = by_word(texts, how)
        count = len(places) if words is None else len(words)
        part = islice(stream, BATCHES) if stream else encoded(rows, how, batch_size=size, deal=deal)
        bad: dict[int, str] = {}
        outputs = team.iterate(predictor.responses(_ticked(part, first, bad, ticks), data=items.name))
        responses = in_memory(collected(outputs, count=count, names=predictor.score_names))
        packed = torch.tensor(list(json.dumps(bad).encode()), dtype=torch.uint8)
        for other in team.in_order([packed]):
            bad |= {int(place): why for place, why in json.loads(bytes(other.tolist())).items()}
        if texts is None or words is None:
            yield places, responses, bad, None
        else:
            yield places, responses.mapped(words.by_document), bad, whole_words(texts, words)


def _ticked(
    batches: Iterable[Batch[Inputs]], first: int, bad: dict[int, str], ticks: Iterator[object]
) -> Iterator[Batch[Inputs]]:
    """Yield batches with indices counted from `first`, advance `ticks`, and add the reasons of unreadable items to `bad`."""
    for batch in batches:
        bad.update(batch.bad)
        yield batch._replace(indices=batch.indices - first)
        next(ticks, None)


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


@stage
def run_predict(config: PredictConfig) -> PredictReport:
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
        Output.claim(config, [config.out], writes=team.leads) as output,
    ):
        opened = open_reader(config.model, arch=config.arch, max_length=config.max_length)
        _check_outputs(config, opened, output)
        warn(opened)
        formatter = RowFormatter.of(config, opened)
        fit = training_data(config, formatter, team)
        sources = [] if config.data == (LINES,) else open_sources(config, opened.header.preprocess)
        if config.skip_bad:
            sources = [Source(source.name, lenient(source.items)) for source in sources]
        options = {"ood_score": formatter.score, "threshold": formatter.below, "top_k": config.top_k}
        made_by = sidecar_step(config, config.out, opened=opened, options=options) if team.leads else None
        blocks = _blocks(formatter, fit, sources, device, team)
        if not team.leads:
            deque(blocks, maxlen=0)
        labels: Counter[str] = Counter()
        numbers: Counter[str] = Counter()
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
            reason=formatter.reason,
        )


def _check_outputs(config: PredictConfig, opened: OpenModel, output: Output) -> None:
    references = [reference for reference in config.data if reference != LINES]
    output.check(
        config.out,
        models=[opened],
        data=[DataRef.parse(reference) for reference in references if image_path(reference) is None],
        files=[
            config.naming.file,
            config.threshold if isinstance(config.threshold, Path) else None,
            *map(image_path, references),
        ],
        sidecars=config.if_changed,
    )


def _labels(line: Line) -> list[str]:
    """Return the labels that a line tells."""
    if ENTITIES in line:
        return [entity["label"] for entity in line[ENTITIES]]
    return line[LABELS] if LABELS in line else [line["label"]]


def _written(
    config: PredictConfig,
    blocks: Iterator[list[Line]],
    columns: dict[str, type],
    output: Output,
    made_by: Step | None,
) -> Iterator[Line]:
    """Write lines, and yield them: to a stream as they come; to a file at least `AT_ONCE` at a time, with its lineage beside it."""
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
        ) as writer,  # an interrupted Parquet writer, too
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


def _blocks(
    formatter: RowFormatter,
    fit: FitOn | None,
    sources: Sequence[Source],
    device: torch.device,
    team: ProcessGroup,
) -> Iterator[list[Line]]:
    """Load the model, and yield the lines of each source, some at a time; empty lists in processes that do not write."""
    config, opened = formatter.config, formatter.opened
    size = config.batch_size
    total = -(-sum(-(-len(source.items) // size) for source in sources) // team.world)
    with fits(opened.reference, device):
        model = load_any(opened, dtype=torch_dtype(config.dtype) if config.dtype else None).to(device)
    settle(model, opened, formatter.classes)
    scores = [formatter.score] if is_fitted(formatter.score) else []
    predictor = with_ood_scores(model, opened, scores, fit, team)
    ticks = iter(progress.track(range(total), label=f"{opened.reference}", total=total))
    for source in sources or _lines(formatter):
        for places, responses, bad, words in answers(predictor, source.items, size, team, ticks):
            yield formatter.lines(source, places, responses, bad, words) if team.leads else []
    deque(ticks, maxlen=0)


def _lines(formatter: RowFormatter) -> Iterator[Source]:
    items, config = None, formatter.config
    crew = WorkerPool.of(config.num_workers, images=0)
    how, size = formatter.opened.header.preprocess, window(config.batch_size)
    for items in lines(how, size=size, crew=crew, null=config.null):
        yield Source(None, lenient(items) if config.skip_bad else items)
    if items is None:
        raise DataError("standard input: has no lines")


def training_data(config: PredictConfig, rows: RowFormatter, team: ProcessGroup) -> FitOn | None:
    """Open the data of `--fit`, None if it is not given.

    Raises:
        DataError: If the data cannot be used, or have no labels.
        InputError: If `--threshold` is a report whose score was fitted on other data.
    """
    if config.fit is None:
        return None
    items = open_items(config.fit, rows.opened.header.preprocess, workers=config.num_workers)
    labels, _ = labels_of(
        rows.opened, items, rows.classes, option="--fit", hint="give labelled training data"
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
