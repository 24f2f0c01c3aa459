"""Output lines of `predict`, a line per input, as JSON lines, CSV or Parquet.

A JSON line is an object. A .csv or .parquet file has a column for each number and each name.
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
    Bounds,
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
ACCEPTED, REASON, SET, ERROR = "accepted", "reason", "set", "error"
OPTIONAL: dict[str, type] = {ACCEPTED: bool, REASON: str, SET: str, ERROR: str}
"""Optional columns of a table, with their types. A cell with several names contains a JSON list."""


def lines_of(
    predictions: Predictions | LabelPredictions | WordPredictions,
    names: Sequence[str],
    task: Task,
    *,
    top_k: int,
    score: str,
    decides: bool,
) -> Iterator[Line]:
    """Yield the output line of each sample as a dictionary, without the name of the sample.

    Args:
        predictions: Predictions on N samples.
        names: Class names.
        task: Task of the model.
        top_k: Number of most probable classes in a line, at most all.
        score: OOD score in a line.
        decides: Whether lines contain `accepted`; null without a known threshold.
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
    """Yield the line of each sample with a single label.

    The fields are `label`, `probability`, `top` (a list of objects with `label` and `probability`),
    `entropy`, `mutual_information`, `votes` (a class name per member), `ood_score`, and optionally `accepted`
    and `set`.

    Args:
        predictions: Predictions on N samples.
        names: Class names.
        uncertainties: For each sample, the fields before the votes and the fields after the votes.
        top_k: Number of most probable classes in a line, at most all.
        score: Unused; all functions in `Task.lines` have the same arguments.
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
    """Yield the line of each sample with several labels; arguments as in `class_lines`.

    Instead of `label` and `probability`, a line has `labels`, the names of the predicted labels. Objects in
    `top` also have `label_information`. A member's vote is a list of names.
    """
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
    """Yield the line of each text with predictions per word; arguments as in `class_lines`.

    Instead of classes and votes, a line has `entities`, a list of objects with the fields of `Entity` and
    `ood_score`. Numbers of a text without words are null.
    """
    del names, top_k
    texts = zip(
        predictions.words, predictions.entities, predictions.entity_scores[score], uncertainties, strict=True
    )
    for words, entities, scores, parts in texts:
        uncertainty, ood = (
            parts if words else [dict.fromkeys(x for x in part if x != REASON) for part in parts]
        )
        described = [{**entity._asdict(), "ood_score": x} for entity, x in zip(entities, scores, strict=True)]
        yield {ENTITIES: described, **uncertainty, **ood}


def _uncertainties(predictions: Uncertainties, score: str, *, decides: bool) -> Iterator[tuple[Line, Line]]:
    """Yield each sample's fields on uncertainty before the votes and after the votes."""
    ood_scores = shortest(predictions.scores[score])
    accepted = [None] * len(ood_scores) if predictions.accepted is None else predictions.accepted.tolist()
    reasons = predictions.reason or [None] * len(ood_scores)
    numbers = map(shortest, (predictions.entropy, predictions.mutual_information))
    for entropy, information, ood_score, is_accepted, reason in zip(
        *numbers, ood_scores, accepted, reasons, strict=True
    ):
        decision = {ACCEPTED: is_accepted} | ({} if reason is None else {REASON: reason})
        yield (
            {"entropy": entropy, "mutual_information": information},
            {"ood_score": ood_score, **(decision if decides else {})},
        )


class Writer(ABC):
    """Writer of lines to a file of a certain format."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        """Start a file.

        Args:
            file: The output.
            columns: Columns of a table with their types; see `columns`.
        """
        self.file = file
        self.columns = columns

    @abstractmethod
    def write(self, lines: Sequence[Line]) -> None:
        """Add lines."""

    def close(self) -> None:
        """Write the end of the file. The output itself stays open."""
        self.file.flush()


class JSONLines(Writer):
    """Writer of JSON lines."""

    @override
    def write(self, lines: Sequence[Line]) -> None:
        self.file.write("".join(f"{text(line)}\n" for line in lines).encode())


class CSV(Writer):
    """Writer of CSV with a header row. Missing fields are empty cells."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        super().__init__(file, columns)
        self._add([[*columns]])

    @override
    def write(self, lines: Sequence[Line]) -> None:
        flat = [table_row(line) for line in lines]
        self._add([[_cell(line.get(name)) for name in self.columns] for line in flat])

    def _add(self, rows: Sequence[Sequence[object]]) -> None:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(rows)
        self.file.write(buffer.getvalue().encode(errors="surrogateescape"))


class Parquet(Writer):
    """Writer of Parquet with the same columns as CSV."""

    def __init__(self, file: Sink, columns: Mapping[str, type]) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - needed for Parquet files only
        import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

        super().__init__(file, columns)
        kinds = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}
        self.schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self.table = pa.Table.from_pylist
        self.rows = pq.ParquetWriter(pa.PythonFile(file, mode="w"), self.schema)

    @override
    def write(self, lines: Sequence[Line]) -> None:
        rows = [{name: _utf8(cell) for name, cell in table_row(line).items()} for line in lines]
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
        keys: Columns with the name of an input: `path`, `row`, `data`.
        top_k: Number of most probable classes in a line.
        members: Number of members with a vote.
        optional: Names from `OPTIONAL` that lines may contain.
        task: Task of the model.
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


def table_row(line: Line) -> Line:
    """Return a line as a row of a table: a column for each field of each class in `top`, and for each vote.

    Columns are `label`, `label_2`, ..., `vote_1`, `vote_2`, ...; lists become JSON text.
    """
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
    r"""Return a cell in which bytes that are not UTF-8 are written as `\xff`, because Parquet requires UTF-8."""
    if not isinstance(cell, str):
        return cell
    return cell.encode(errors="surrogateescape").decode(errors="backslashreplace")


def path_text(path: str) -> str:
    """Return a path as text, independent of the locale. Bytes that are not UTF-8 become lone surrogates."""
    return os.fsencode(path).decode(errors="surrogateescape")


def text(line: Line | list[Any]) -> str:
    r"""Return a line or a list of names as JSON.

    Lone surrogates are written as `\udcff`. After parsing, Python can open the file by this path.
    """
    written = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    return NOT_UTF8.sub(lambda half: f"\\u{ord(half[0]):04x}", written)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormatter:
    """Format of the lines of `predict`.

    Attributes:
        header: Header of the model.
        names: Class names.
        top_k: Number of most probable classes in a line.
        score: OOD score in a line.
        bounds: Bounds that accept inputs.
        decides: Whether lines contain `accepted`. The value is null if a threshold was fitted, but no value
            satisfies its risk.
        sets: Stored rule for prediction sets in a line; None if the model stores no rule.
        skips_bad: Whether unreadable images have lines.
    """

    header: Header
    names: tuple[str, ...]
    top_k: int
    score: str
    bounds: Bounds
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
            source: Source of the items.
            places: Indices of the items.
            responses: Predictions on the items.
            bad: Error messages of unreadable items, by index.
            words: Words of each text, for predictions per word.
        """
        bounds, header = self.bounds, self.header
        thresholds, heat = header.label_thresholds, header.entity_temperature
        predictions = (
            predictions_of(responses, self.names, bounds, self.sets, label_thresholds=thresholds)
            if words is None
            else WordPredictions.of(responses, self.names, words, bounds, entity_temperature=heat)
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
            REASON: self.bounds.known_max is not None,
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
