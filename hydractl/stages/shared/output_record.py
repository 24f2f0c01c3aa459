"""What an output that is there says of the command that made it. Importing it loads no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.checkpoint import Checkpoint
from hydractl.errors import InputError, OutputExists
from hydractl.manifest.document import Document
from hydractl.manifest.header import Step
from hydractl.manifest.heads import HeadMask, HeadScores, Mask
from hydractl.manifest.report import DOCUMENTS, Report
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.manifest.sidecar import Record
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.model_source import WEIGHTS
from hydractl.output.atomic_write import Digested, Sink
from hydractl.output.paths import is_folder
from hydractl.runtime import digest_file
from hydractl.strict_json import MAX_BYTES, NotJSONError, parse

PREDICTIONS = {"log_probs", "logsumexp", "labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What an output says.

    Attributes:
        path: Of the file, or the weights in a folder.
        command: Which one made it.
        asked: As `asked_of`; None where it does not say.
        typed: As `typed_by`; None where it does not say.
        versions: Of what it hangs on, by name.
        inputs: The digests of what was read, in the order of the settings that name it.
        records: Whether it says any of that; a mask and predictions are told by what lies beside them.
        masks: Of a checkpoint, or a mask.
        rows: Of a report, or predictions.
        whole: Whether all files of a folder are there, and as they were written.
    """

    path: Path
    command: str
    asked: str | None = None
    typed: tuple[str, ...] | None = None
    versions: Mapping[str, str]
    inputs: tuple[str, ...] = ()
    records: bool = True
    masks: tuple[Mask, ...] = ()
    rows: frozenset[str] = frozenset()
    whole: bool = True

    @classmethod
    def of(cls, step: Step, path: Path, *, masks: tuple[Mask, ...] = ()) -> Made:
        """Return what an output says that tells of the step that made it."""
        inputs = tuple(file.sha256 for file in step.inputs)
        return cls(
            path=path,
            command=step.command,
            asked=step.asked,
            typed=step.typed,
            versions=step.versions,
            inputs=inputs,
            masks=masks,
        )

    @property
    def digest(self) -> str:
        """Of the file."""
        return digest_file(self.path)


class NotMadeError(OutputExists):
    """An output's name is taken by what the command did not make.

    Attributes:
        path: The output.
        said: What is known of it, after the path.
    """

    def __init__(self, path: Path, said: str, *, command: str, hint: str) -> None:
        self.path, self.said = path, said
        super().__init__(
            f"{path}: {said}, and `--if-changed` replaces what `hydractl {command}` made", hint=hint
        )


def made_by(path: Path, command: str, *, beside: bool = False) -> Made | None:
    """Return what an output says; None where there is none.

    Args:
        path: The output.
        command: The command that replaces no other's.
        beside: Whether what it makes can say so in no other place than a file beside it, and does so only if asked.

    Raises:
        NotMadeError: If `command` did not make what is there.
    """
    try:
        found = _opened(path)
    except (InputError, NotJSONError, UnicodeDecodeError):
        found = Made(path=path, command="", versions={})
    if found is None or found.command == command:
        return found
    if found.command:
        said = f"was made by `hydractl {found.command}`"
    elif is_recorded(path):
        said = "is not as it was written"
    else:
        said = "does not say what made it"
    hint = "choose another name with `-o`, move it away, or add `--force` in place of `--if-changed`"
    if beside and not is_recorded(path):  # what `--force` makes then would say no more
        said = f"was made without `--if-changed`, or by something else: no {Record.place(path).name} says what made it"
        hint = "move it away once, and the same command makes both; or choose another name with `-o`"
    raise NotMadeError(path, said, command=command, hint=hint)


def check_record(path: Path) -> None:
    """Refuse a place for the record of an output where something else stands, before any work is done.

    Raises:
        OutputExists: If it does.
    """
    beside = Record.place(path)
    if os.path.lexists(beside) and not is_recorded(path):
        raise OutputExists(
            f"{beside}: is where it is written down what made {path.name}, and hydractl did not write what is there",
            hint="move it away, or choose another name with `-o`",
        )


@contextmanager
def begun(begin: Callable[[Path], Sink], path: Path, made_by: Step | None) -> Iterator[Digested]:
    """Begin an output, and end with what made it beside it, if that is wanted; nobody is told of the one without the other."""
    record = None if made_by is None else begin(Record.place(path))
    file = Digested(begin(path))
    yield file
    if record is not None and made_by is not None:
        record.write(Record(sha256=file.digest, made_by=made_by).to_json().encode())


def is_recorded(path: Path) -> bool:
    """Return whether a record of an output stands beside it."""
    try:
        return bool(Record.read(Record.place(path)))
    except InputError:
        return False


def _opened(path: Path) -> Made | None:
    if is_folder(path):
        return _in_folder(path)
    if not path.exists():
        return None
    if (beside := Record.place(path)).exists():
        return _recorded(path, Record.read(beside))
    with path.open("rb") as file:
        begin = file.read(8)
        if b"\0" in begin:
            return _of_checkpoint(Checkpoint.open(path))
        text = begin + file.read(MAX_BYTES)
    raw = parse(text.decode())
    kinds = {kind.schema_name(): kind for kind in DOCUMENTS.values()}
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema not in kinds:
        raise InputError(f"{path}: is no file of hydractl")
    return _of_document(kinds[schema].read(path), path)


def _in_folder(folder: Path) -> Made | None:
    from hydractl.hub.layout import files_of, of_model  # noqa: PLC0415 - most outputs are files

    if not (folder / WEIGHTS).is_file():
        if of_model(folder):
            raise InputError(f"{folder}: holds a model that hydractl did not write")
        return None
    checkpoint = Checkpoint.open(folder / WEIGHTS)
    found = _of_checkpoint(checkpoint)
    files = {} if checkpoint.header is None else files_of(checkpoint.header)
    there = {path.name: path.read_bytes() for path in of_model(folder) if path.name != WEIGHTS}
    return replace(found, whole=there == files)


def _recorded(path: Path, record: Record) -> Made:
    """Return what the file beside an output says; one that was changed since is somebody else's."""
    if record.sha256 != digest_file(path):
        raise InputError(f"{path}: is not as it was written")
    return Made.of(record.made_by, path)


def _of_checkpoint(checkpoint: Checkpoint) -> Made:
    header, path = checkpoint.header, checkpoint.paths[0]
    if header is None and {name.partition("/")[0] for name in checkpoint.specs} <= PREDICTIONS:
        rows = {name.split("/")[1] for name in checkpoint.specs if not name.startswith("labels/")}
        return Made(path=path, command="eval", versions={}, records=False, rows=frozenset(rows))
    step = None if header is None else header.made_by
    if header is None or step is None:
        raise InputError(f"{path}: does not say what made it")
    if step.command == "eval":  # a copy of what was measured, beside the report
        return replace(Made.of(step, path), inputs=(), records=False)
    return Made.of(step, path, masks=header.masks)


def _of_document(found: Document, path: Path) -> Made:
    if isinstance(found, HeadScores):
        data = [found.data[role].sha256 for role in ("id", "ood") if role in found.data]
        return Made(
            path=path,
            command="score",
            asked=found.asked,
            typed=found.typed,
            versions=found.versions,
            inputs=(found.model.sha256, *data),
        )
    if isinstance(found, Report):
        models = [tuple(model.sha256 for model in row.models) for row in found.rows]
        data = [found.data[name].sha256 for name in (ID_NAME, *found.near, *found.far)]
        derived = [one for row in found.rows for one in row.derived if one is not None]
        fitted = [one.data.sha256 for one in derived if one.data is not None]
        fitted += [one.val.sha256 for one in derived if one.val is not None]
        others = [
            found.data[name].sha256 for name in (TEMPERATURE, FIT, *found.ood_val, VAL) if name in found.data
        ]
        scores = [own.sha256 for own in found.scores]
        return Made(
            path=path,
            command="eval",
            asked=found.asked,
            versions=found.versions,
            inputs=(
                *models[0],
                *data,
                *(digest for row in models[1:] for digest in row),
                *others,
                *scores,
                *fitted,
            ),
            rows=frozenset(row.name for row in found.rows),
        )
    if isinstance(found, HeadMask) and found.origin is not None:
        return Made(path=path, command="prune", versions={}, records=False, masks=(found.towers,))
    raise InputError(f"{path}: does not say what made it")
