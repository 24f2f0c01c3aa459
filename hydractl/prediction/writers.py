"""A line an input: what is written of it, and in which form.

A line is an object of JSON; a .csv or .parquet file has a column for each of its numbers and names.
"""

from __future__ import annotations

import csv
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from typing_extensions import override

from hydractl.data.words import Span
from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.header import Header, Tokenization
from hydractl.metrics.per_sample import Responses
from hydractl.output.publish import Sink
from hydractl.plugins import load
from hydractl.prediction.predictions import (
    LabelPredictions,
    Predictions,
    Uncertainties,
    WordPredictions,
    predictions_of,
    shortest,
)
from hydractl.prediction.sources import Source
from hydractl.strict_json import NOT_UTF8
from hydractl.tasks import SINGLE_LABEL, Task

Line = dict[str, Any]
PATH, ROW, DATA, LABELS, ENTITIES = "path", "row", "data", "labels", "entities"
ACCEPTED, SET, ERROR = "accepted", "set", "error"
OPTIONAL: dict[str, type] = {ACCEPTED: bool, SET: str, ERROR: str}
"""Columns that a table may have, with their types; a cell that holds several names is a list in JSON."""


def lines_of(
    predictions: Predictions | LabelPredictions | WordPredictions,
    names: Sequence[str],
    task: Task,
    *,
    top_k: int,
    score: str,
    decides: bool,
) -> Iterator[Line]:
    """Yield what is told of each sample, without what it is called.

    Args:
        predictions: Of N samples.
        names: Of the classes.
        task: Of the model.
        top_k: How many classes are told, at most all.
        score: The OOD score that is told.
        decides: Whether they say if it is accepted, null where no threshold is known.
    """
    uncertainties = _uncertainties(predictions, score, decides=decides)
    lines: Iterator[Line] = load(task.lines)(predictions, names, uncertainties, top_k=top_k, score=score)
    return lines


def class_lines(
    predictions: Predictions,
    names: Sequence[str],
    uncertainties: Iterator[tuple[Line, Line]],
    *,
    top_k: int,
    score: str,
) -> Iterator[Line]:
    """Yield what is told of each sample that has one label.

    Args:
        predictions: Of N samples.
        names: Of the classes.
        uncertainties: What comes before votes and behind them, of each sample.
        top_k: How many classes are told, at most all.
        score: The OOD score that is told.
    """
    del score
    likeliest = predictions.probabilities.sort(dim=1, descending=True, stable=True)
    probabilities, classes = (x[:, :top_k] for x in likeliest)
    samples = zip(
        shortest(probabilities),
        classes.tolist(),
        predictions.votes.T.tolist(),
        uncertainties,
        [None] * len(predictions) if predictions.sets is None else predictions.sets.tolist(),
        strict=True,
    )
    for probability, top, votes, (uncertainty, ood), in_set in samples:
        yield {
            "label": names[top[0]],
            "probability": probability[0],
            "top": [{"label": names[c], "probability": p} for c, p in zip(top, probability, strict=True)],
            **uncertainty,
            "votes": [names[c] for c in votes],
            **ood,
            **({} if in_set is None else {SET: [*compress(names, in_set)]}),
        }


def label_lines(
    predictions: LabelPredictions,
    names: Sequence[str],
    uncertainties: Iterator[tuple[Line, Line]],
    *,
    top_k: int,
    score: str,
) -> Iterator[Line]:
    """Yield what is told of each sample that may have several labels; arguments as of `class_lines`."""
    del score
    likeliest = predictions.probabilities.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    samples = zip(
        predictions.labels,
        likeliest.tolist(),
        *(
            shortest(x.gather(1, likeliest))
            for x in (predictions.probabilities, predictions.label_information)
        ),
        predictions.votes.transpose(0, 1).tolist(),
        uncertainties,
        strict=True,
    )
    for labels, top, probability, information, votes, (uncertainty, ood) in samples:
        yield {
            LABELS: [*labels],
            "top": [
                {"label": names[label], "probability": p, "label_information": mi}
                for label, p, mi in zip(top, probability, information, strict=True)
            ],
            **uncertainty,
            "votes": [[name for name, vote in zip(names, member, strict=True) if vote] for member in votes],
            **ood,
        }


def entity_lines(
    predictions: WordPredictions,
    names: Sequence[str],
    uncertainties: Iterator[tuple[Line, Line]],
    *,
    top_k: int,
    score: str,
) -> Iterator[Line]:
    """Yield what is told of each text whose words are answered, null where it has none; arguments as of `class_lines`."""
    del names, top_k
    texts = zip(
        predictions.words, predictions.entities, predictions.entity_scores[score], uncertainties, strict=True
    )
    for words, entities, scores, parts in texts:
        uncertainty, ood = parts if words else [dict.fromkeys(part) for part in parts]
        described = [{**entity._asdict(), "ood_score": x} for entity, x in zip(entities, scores, strict=True)]
        yield {ENTITIES: described, **uncertainty, **ood}


def _uncertainties(predictions: Uncertainties, score: str, *, decides: bool) -> Iterator[tuple[Line, Line]]:
    """Yield what is told of the uncertainty of each sample before and behind votes."""
    ood_scores = shortest(predictions.scores[score])
    accepted = [None] * len(ood_scores) if predictions.accepted is None else predictions.accepted.tolist()
    numbers = map(shortest, (predictions.entropy, predictions.mutual_information))
    for entropy, information, ood_score, is_accepted in zip(*numbers, ood_scores, accepted, strict=True):
        yield (
            {"entropy": entropy, "mutual_information": information},
            {"ood_score": ood_score, **({ACCEPTED: is_accepted} if decides else {})},
        )


class Writer(ABC):
    """What turns lines into a file of one form."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        """Begin a file.

        Args:
            file: Where it goes.
            columns: Those of a table by their names, with their types; see `columns`.
        """
        self.file = file
        self.columns = columns

    @abstractmethod
    def write(self, lines: Sequence[Line]) -> None:
        """Add lines."""

    def close(self) -> None:
        """End the file."""
        self.file.flush()


class JSONLines(Writer):
    """An object a line."""

    @override
    def write(self, lines: Sequence[Line]) -> None:
        self.file.write("".join(f"{text(line)}\n" for line in lines).encode())


class CSV(Writer):
    """A head and a row a line; what a line lacks is empty."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        super().__init__(file, columns)
        self._add([[*columns]])

    @override
    def write(self, lines: Sequence[Line]) -> None:
        flat = [flattened(line) for line in lines]
        self._add([[_cell(line.get(name)) for name in self.columns] for line in flat])

    def _add(self, rows: Sequence[Sequence[object]]) -> None:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(rows)
        self.file.write(buffer.getvalue().encode(errors="surrogateescape"))


class Parquet(Writer):
    """The same columns."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - what writes no such file need not load it
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

        super().__init__(file, columns)
        kinds = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}
        self.schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self.table = pa.Table.from_pylist
        self.rows = pq.ParquetWriter(pa.PythonFile(file, mode="w"), self.schema)

    @override
    def write(self, lines: Sequence[Line]) -> None:
        rows = [{name: _utf8(cell) for name, cell in flattened(line).items()} for line in lines]
        self.rows.write_table(self.table(rows, schema=self.schema))

    @override
    def close(self) -> None:
        self.rows.close()


WRITERS: Mapping[str, type[Writer]] = {".jsonl": JSONLines, ".csv": CSV, ".parquet": Parquet}


def columns(
    keys: Sequence[str],
    *,
    top_k: int,
    members: int,
    optional: Collection[str],
    task: Task = SINGLE_LABEL,
) -> dict[str, type]:
    """Return the columns of a table of lines, in order, with their types.

    Args:
        keys: What an input is called by.
        top_k: How many classes are told.
        members: How many vote.
        optional: Which of `OPTIONAL` lines may have.
        task: Of the model.
    """
    types: dict[str, type] = {PATH: str, ROW: int, DATA: str}
    return (
        {key: types[key] for key in keys}
        | dict(task.columns)
        | {f"{name}{_nth(k)}": cell for k in range(top_k) for name, cell in task.likeliest}
        | {"entropy": float, "mutual_information": float}
        | {f"vote_{m + 1}": str for m in range(members if task.likeliest else 0)}
        | {"ood_score": float}
        | {name: cell for name, cell in OPTIONAL.items() if name in optional}
    )


def flattened(line: Line) -> Line:
    """Return a line as a table has it: a column for each of the likeliest classes and for each vote."""
    top, votes = line.get("top", ()), line.get("votes", ())
    flat = {name: cell for name, cell in line.items() if name not in {"top", "votes"}}
    for k, likely in enumerate(top):
        flat |= {f"{name}{_nth(k)}": cell for name, cell in likely.items()}
    flat |= {f"vote_{m + 1}": vote for m, vote in enumerate(votes)}
    return {name: text(cell) if isinstance(cell, list) else cell for name, cell in flat.items()}


def _nth(k: int) -> str:
    return f"_{k + 1}" if k else ""


def _cell(cell: object) -> object:
    return json.dumps(cell) if isinstance(cell, bool) else cell


def _utf8(cell: object) -> object:
    r"""Return a cell, of a text the bytes that are not UTF-8 as `\xff`: Parquet has no others."""
    if not isinstance(cell, str):
        return cell
    return cell.encode(errors="surrogateescape").decode(errors="backslashreplace")


def path_text(path: str) -> str:
    """Return a path by its bytes, whatever the locale says of them; those that are not UTF-8 are lone surrogates."""
    return os.fsencode(path).decode(errors="surrogateescape")


def text(line: Line | list[Any]) -> str:
    r"""Return a line, or names, as JSON; lone surrogates are written as `\udcff`, which Python opens a file by."""
    written = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    return NOT_UTF8.sub(lambda half: f"\\u{ord(half[0]):04x}", written)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormatter:
    """Format of the lines of `predict`.

    Attributes:
        header: Header of the model.
        names: Names of the classes.
        top_k: Number of most probable classes in a line.
        score: The OOD score in a line.
        below: Inputs with an OOD score below it are accepted; None without a threshold.
        decides: Whether lines have `accepted`: null if a threshold was fitted and none keeps its risk.
        sets: Prediction sets in a line; None if the model stores none.
        skips_bad: Whether unreadable images have lines.
    """

    header: Header
    names: tuple[str, ...]
    top_k: int
    score: str
    below: float | None
    decides: bool
    sets: PredictionSets | None
    skips_bad: bool

    def lines(
        self,
        source: Source,
        places: range,
        responses: Responses,
        bad: Mapping[int, str],
        words: list[tuple[str, list[Span]]] | None,
    ) -> list[Line]:
        """Return the lines of consecutive items of a source.

        Args:
            source: The source, which names the items.
            places: Numbers of the items.
            responses: Predictions on the items.
            bad: Reasons why items are unreadable, by number.
            words: The words of each text if words are answered.
        """
        bound, header = None if self.below is None else (self.score, self.below), self.header
        thresholds, heat = header.label_thresholds, header.entity_temperature
        predictions = (
            predictions_of(responses, self.names, bound, self.sets, label_thresholds=thresholds)
            if words is None
            else WordPredictions.of(responses, self.names, words, bound, entity_temperature=heat)
        )
        lines = lines_of(
            predictions,
            self.names,
            header.architecture.task,
            top_k=self.top_k,
            score=self.score,
            decides=self.decides,
        )
        return [
            ({} if source.name is None else {DATA: path_text(source.name)})
            | ({PATH: path_text(key)} if isinstance(key := source.items.key(i), str) else {ROW: key})
            | (line if i not in bad else {ERROR: bad[i]})
            for i, line in zip(places, lines, strict=True)
        ]

    def columns(self, sources: Sequence[Source]) -> dict[str, type]:
        """Return the columns of a table of all lines."""
        texts = isinstance(self.header.preprocess, Tokenization)
        kinds = {type(s.items.key(0)) for s in sources} or {int if texts else str}
        keys = {DATA: any(s.name is not None for s in sources), PATH: str in kinds, ROW: int in kinds}
        optional = {
            ACCEPTED: self.decides,
            SET: self.sets is not None,
            ERROR: self.skips_bad and not texts,
        }
        return columns(
            [key for key, is_used in keys.items() if is_used],
            top_k=min(self.top_k, len(self.names)),
            members=len(self.header.masks),
            optional=[name for name, may_be in optional.items() if may_be],
            task=self.header.architecture.task,
        )
