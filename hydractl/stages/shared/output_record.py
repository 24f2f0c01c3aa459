"""What made an output: written into it, or into a file beside it, and read from one that is there. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef
from hydractl.errors import InputError, OutputExists
from hydractl.manifest.document import Document, OptionValue
from hydractl.manifest.head_mask import HeadMask, HeadScores, Mask
from hydractl.manifest.header import InputFile, SampledFile, Step
from hydractl.manifest.report import DOCUMENTS, Report
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.manifest.sidecar import Sidecar
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.model_source import WEIGHTS
from hydractl.output.atomic_write import Digested, Sink, is_stream
from hydractl.output.paths import is_folder
from hydractl.output.sync import has_content
from hydractl.runtime import digest_file, versions
from hydractl.stages.shared.command_config import CommandConfig, config_digest, input_refs, recorded_argv
from hydractl.strict_json import MAX_BYTES, NotJSONError, parse
from hydractl.version import __version__

if TYPE_CHECKING:
    from hydractl.families.base import Family
    from hydractl.families.load import OpenModel

TOOL = f"hydractl {__version__}"
PREDICTIONS = {"log_probs", "logsumexp", "labels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What an output that is there says of what made it.

    Attributes:
        path: Of the file, or the weights in a folder.
        command: Which one made it; empty where it does not say.
        config_digest: As `command_config.config_digest`; None where it does not say.
        argv: As `recorded_argv`; None where it does not say.
        versions: Of what it depends on, by name.
        inputs: The digests of what was read, in the order of the settings that name it.
        has_step: Whether it says any of that; what made a mask and predictions is told by what lies beside them.
        masks: Of a checkpoint, or a mask.
        rows: Of a report, or predictions.
        intact: Whether all files of a folder are there, and as they were written.
    """

    path: Path
    command: str
    config_digest: str | None = None
    argv: tuple[str, ...] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    has_step: bool = True
    masks: tuple[Mask, ...] = ()
    rows: frozenset[str] = frozenset()
    intact: bool = True

    @classmethod
    def of(cls, step: Step, path: Path, *, masks: tuple[Mask, ...] = ()) -> OutputRecord:
        """Return the record of an output that tells of the step that made it."""
        return cls(
            path=path,
            command=step.command,
            config_digest=step.config_digest,
            argv=step.argv,
            versions=step.versions,
            inputs=tuple(file.sha256 for file in step.inputs),
            masks=masks,
        )

    @property
    def digest(self) -> str:
        """Of the file."""
        return digest_file(self.path)


class ForeignOutputError(OutputExists):
    """An output's name is taken by what the command did not make.

    Attributes:
        path: The output.
        finding: What is known of it, after the path.
    """

    def __init__(self, path: Path, finding: str, *, command: str, hint: str) -> None:
        self.path, self.finding = path, finding
        super().__init__(
            f"{path}: {finding}, but `--if-changed` replaces only outputs of `hydractl {command}`", hint=hint
        )


def read_record(path: Path, command: str, *, beside: bool = False) -> OutputRecord | None:
    """Return what an output says; None for a missing file, and for one of 0 bytes.

    Args:
        path: The output.
        command: The command that replaces no other's.
        beside: Whether what it makes can say so in no other place than a file beside it, and does so only if asked.

    Raises:
        ForeignOutputError: If `command` did not make what is there.
    """
    try:
        record = _read(path)
    except (InputError, NotJSONError, UnicodeDecodeError):
        record = OutputRecord(path=path, command="")
    if record is None or record.command == command:
        return record
    hint = "choose another name with `-o`, move it to another place, or replace `--if-changed` by `--force`"
    if beside and not has_sidecar(path):  # what `--force` makes then would say no more
        finding = (
            f"was not made by hydractl with `--if-changed`: it has no {Sidecar.path_of(path).name} "
            "that records how it was made"
        )
        hint = "move it to another place and run the same command again, or choose another name with `-o`"
    elif record.command:
        finding = f"was made by `hydractl {record.command}`"
    else:
        finding = (
            "has changed since it was written" if has_sidecar(path) else "does not record how it was made"
        )
    raise ForeignOutputError(path, finding, command=command, hint=hint)


def make_step(
    config: CommandConfig,
    *,
    family: Family,
    options: Mapping[str, OptionValue],
    inputs: Sequence[InputFile],
    seed: int | None = None,
    results: Mapping[str, OptionValue] | None = None,
) -> Step:
    """Return the lineage entry of one stage. Options are those that shape the output, never paths."""
    return Step(
        command=config.COMMAND,
        options={k: v for k, v in options.items() if v is not None},
        inputs=tuple(inputs),
        seed=seed,
        results=dict(results or {}),
        versions=library_versions(family),
        config_digest=config_digest(config),
        argv=recorded_argv(config),
    )


def sidecar_step(
    config: CommandConfig,
    out: Path,
    *,
    opened: OpenModel,
    options: Mapping[str, OptionValue],
    seed: int | None = None,
    needs: Sequence[str] = (),
) -> Step | None:
    """Return what is written beside an output that cannot say itself what makes it; None where nobody has asked for that.

    What came through a stream is gone, and nothing is written of it.

    Args:
        config: What was asked.
        out: The output.
        opened: The model, which is the first thing that is read.
        options: As `make_step`.
        seed: Likewise.
        needs: Further libraries that the output depends on.
    """
    _, *read = input_refs(config)
    streams = is_stream(out) or any(ref.is_stream for ref in read)
    if streams or not (config.if_changed or has_sidecar(out)):
        return None
    inputs = [opened.as_input(), *(InputFile(name=ref.name, sha256=ref.digest()) for ref in read)]
    step = make_step(config, family=opened.family, options=options, inputs=inputs, seed=seed)
    return step.model_copy(update={"versions": step.versions | versions(*needs)})


def has_sidecar(path: Path) -> bool:
    """Return whether a sidecar of an output stands beside it."""
    try:
        return bool(Sidecar.read(Sidecar.path_of(path)))
    except InputError:
        return False


def check_sidecar(path: Path) -> None:
    """Refuse an output's name where something else stands in the place of its sidecar, before any work is done.

    Raises:
        OutputExists: If it does.
    """
    beside = Sidecar.path_of(path)
    if (beside.is_symlink() or has_content(beside)) and not has_sidecar(path):
        raise OutputExists(
            f"{beside}: the record of how {path.name} was made goes here, but the existing file is not from hydractl",
            hint="move it to another place, or choose another name with `-o`",
        )


@contextmanager
def begin_with_sidecar(begin: Callable[[Path], Sink], path: Path, made_by: Step | None) -> Iterator[Digested]:
    """Begin an output, and end with what made it beside it, if that is wanted; nobody is told of the one without the other."""
    sidecar = None if made_by is None else begin(Sidecar.path_of(path))
    file = Digested(begin(path))
    yield file
    if sidecar is not None and made_by is not None:
        sidecar.write(Sidecar(sha256=file.digest, made_by=made_by).to_json().encode())


def library_versions(family: Family) -> dict[str, str]:
    """Return the versions of what an output depends on."""
    return {"hydractl": __version__, **versions("torch", "safetensors", family.library)}


def document_input(path: Path, digest: str | None = None, *, made_by: Step | None = None) -> InputFile:
    """Return the lineage entry of a JSON file; `digest` where the file was a stream and is gone."""
    name = "-" if is_stream(path) else path.name
    return InputFile(name=name, sha256=digest or digest_file(path), made_by=made_by)


def scored_data(scores: HeadScores) -> list[InputFile]:
    """Return the lineage entries of the data of scores."""
    return [
        SampledFile(
            name=DataRef.parse(data.reference).name,
            sha256=data.sha256,
            samples=scores.samples.get(data.sha256, ""),
        )
        for _, data in sorted(scores.data.items())
    ]


def scoring_step(scores: HeadScores, opened: OpenModel) -> Step | None:
    """Return the step that wrote scores, as they say themselves; with the model's own lineage where they are of that one."""
    model = opened.as_input()
    if scores.model.sha256 != model.sha256:
        model = InputFile(name=scores.model.reference, sha256=scores.model.sha256)
    elif model.made_by is not None and model.made_by.command == "score":  # which trained the model too
        return model.made_by
    objective = {} if scores.objective is None else {"objective": scores.objective}
    return Step(
        command="score",
        options={"method": scores.method, **objective, **scores.options},
        inputs=(model, *scored_data(scores)),
        results=scores.results,
        versions=scores.versions,
        config_digest=scores.config_digest,
        argv=scores.argv,
    )


def _read(path: Path) -> OutputRecord | None:
    if is_folder(path):
        return _of_folder(path)
    if not has_content(path):
        return None
    if has_content(beside := Sidecar.path_of(path)):
        sidecar = Sidecar.read(beside)
        if sidecar.sha256 != digest_file(path):  # somebody else has changed it since
            raise InputError(f"{path}: has changed since it was written")
        return OutputRecord.of(sidecar.made_by, path)
    with path.open("rb") as file:
        head = file.read(8)
        if b"\0" in head:
            return _of_checkpoint(Checkpoint.open(path))
        text = head + file.read(MAX_BYTES)
    raw = parse(text.decode())
    kinds = {kind.schema_name(): kind for kind in DOCUMENTS.values()}
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema not in kinds:
        raise InputError(f"{path}: is not a file of hydractl")
    return _of_document(kinds[schema].read(path), path)


def _of_folder(folder: Path) -> OutputRecord | None:
    from hydractl.hub.layout import files_of, of_model  # noqa: PLC0415 - most outputs are files

    if not has_content(folder / WEIGHTS):
        if of_model(folder) and not (folder / WEIGHTS).exists():
            raise InputError(f"{folder}: contains a model that hydractl did not write")
        return None
    checkpoint = Checkpoint.open(folder / WEIGHTS)
    record = _of_checkpoint(checkpoint)
    written = {} if checkpoint.header is None else files_of(checkpoint.header)
    present = {path.name: path.read_bytes() for path in of_model(folder) if path.name != WEIGHTS}
    return replace(record, intact=present == written)


def _of_checkpoint(checkpoint: Checkpoint) -> OutputRecord:
    header, path = checkpoint.header, checkpoint.paths[0]
    if header is None and {name.partition("/")[0] for name in checkpoint.specs} <= PREDICTIONS:
        rows = {name.split("/")[1] for name in checkpoint.specs if not name.startswith("labels/")}
        return OutputRecord(path=path, command="eval", has_step=False, rows=frozenset(rows))
    step = None if header is None else header.made_by
    if header is None or step is None:
        raise InputError(f"{path}: does not record how it was made")
    if step.command == "eval":  # a copy of what was measured, beside the report
        return replace(OutputRecord.of(step, path), inputs=(), has_step=False)
    return OutputRecord.of(step, path, masks=header.masks)


def _of_document(document: Document, path: Path) -> OutputRecord:
    if isinstance(document, HeadScores):
        data = [document.data[role].sha256 for role in ("id", "ood") if role in document.data]
        return OutputRecord(
            path=path,
            command="score",
            config_digest=document.config_digest,
            argv=document.argv,
            versions=document.versions,
            inputs=(document.model.sha256, *data),
        )
    if isinstance(document, Report):
        return OutputRecord(
            path=path,
            command="eval",
            config_digest=document.config_digest,
            versions=document.versions,
            inputs=tuple(_inputs_of(document)),
            rows=frozenset(row.name for row in document.rows),
        )
    if isinstance(document, HeadMask) and document.origin is not None:
        return OutputRecord(path=path, command="prune", has_step=False, masks=(document.towers,))
    raise InputError(f"{path}: does not record how it was made")


def _inputs_of(report: Report) -> Iterator[str]:
    """Yield the digests of what `eval` read, in the order of its settings."""
    first, *others = report.rows
    beside = [name for name in (TEMPERATURE, FIT, *report.ood_val, VAL) if name in report.data]
    yield from (model.sha256 for model in first.models)
    yield from (report.data[name].sha256 for name in (ID_NAME, *report.near, *report.far))
    yield from (model.sha256 for row in others for model in row.models)
    yield from (report.data[name].sha256 for name in beside)
    yield from report.further_inputs()
