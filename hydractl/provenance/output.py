"""Outputs of commands: path checks, provenance, `--if-changed`, and publication.

Checkpoints, scores, reports, sidecars, lineage and cards share one record: `manifest.header.Step`. A step
stores the digest of the command's configuration, the digests of inputs in the order of their settings, and
versions. `--if-changed` computes the same values again from the configuration. Importing this module does not
load torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.checkpoint import Checkpoint
from hydractl.data.reference import DataRef, SourceKind
from hydractl.errors import VALUE, HydraError, InputError, Interrupted, OutputExists, UsageError, shortened
from hydractl.manifest.document import Document, OptionValue
from hydractl.manifest.head_mask import HeadImportance, HeadMask, Mask
from hydractl.manifest.header import Header, InputFile, SampledFile, Sidecar, Step
from hydractl.manifest.report import DOCUMENTS, Report
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import quoted
from hydractl.metrics.registry import FIT, TEMPERATURE, VAL
from hydractl.model_source import WEIGHTS
from hydractl.output.publish import (
    Digested,
    OutputLock,
    Sink,
    check_folder,
    check_output,
    claimed,
    has_content,
    is_folder,
    is_stream,
    publish_together,
)
from hydractl.processes.distributed import HINT
from hydractl.provenance.command_config import (
    IF_CHANGED_BESIDE,
    CommandConfig,
    config_digest,
    input_refs,
    recorded_argv,
)
from hydractl.runtime import digest_file, versions
from hydractl.settings import declared
from hydractl.strict_json import MAX_BYTES, NotJSONError, parse
from hydractl.version import __version__

if TYPE_CHECKING:
    from hydractl.families.base import Family
    from hydractl.families.open_model import OpenModel


TOOL = f"hydractl {__version__}"
PREDICTIONS = {"log_probs", "logsumexp", "labels"}
MOST_OPTIONS = 4
"""Maximum number of changed options in a message. Chosen by hand; twice the number makes messages of
`--if-changed` up to twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """Provenance of an existing output.

    Attributes:
        path: Path of the file, or of the weights in a folder.
        step: Step that wrote the output.
        complete: Whether the step has versions and inputs. False for masks, predictions and copies of models:
            another output of the same command records both.
        masks: Masks of a checkpoint or of a mask file.
        rows: Names of the rows of a report or of predictions.
        intact: Whether all files of a folder exist and are unchanged.
    """

    path: Path
    step: Step
    complete: bool = True
    masks: tuple[Mask, ...] = ()
    rows: frozenset[str] = frozenset()
    intact: bool = True


class ForeignOutputError(OutputExists):
    """The file at an output's path was not made by this command.

    Attributes:
        path: The output.
        finding: Description of the file, the text after the path in the message.
    """

    def __init__(self, path: Path, finding: str, *, command: str, hint: str) -> None:
        self.path, self.finding = path, finding
        super().__init__(
            f"{path}: {finding}, but `--if-changed` replaces only outputs of `hydractl {command}`", hint=hint
        )


def make_step(
    command: CommandConfig,
    *,
    family: Family,
    options: Mapping[str, OptionValue],
    inputs: Sequence[InputFile],
    seed: int | None = None,
    results: Mapping[str, OptionValue] | None = None,
) -> Step:
    """Return the record of a stage.

    Args:
        command: Configuration of the command.
        family: Family of the model. The versions of the library are recorded.
        options: Options with an influence on the output, never paths. Options with value None are left out.
        inputs: Files and data sets read by the stage.
        seed: Seed of the stage.
        results: Numbers measured by the stage.
    """
    return Step(
        command=command.COMMAND,
        options={k: v for k, v in options.items() if v is not None},
        inputs=tuple(inputs),
        seed=seed,
        results=dict(results or {}),
        versions={"hydractl": __version__, **versions("torch", "safetensors", family.library)},
        config_digest=config_digest(command),
        argv=recorded_argv(command),
    )


def sidecar_step(
    command: CommandConfig,
    out: Path,
    *,
    model_file: OpenModel,
    options: Mapping[str, OptionValue],
    seed: int | None = None,
    libraries: Sequence[str] = (),
) -> Step | None:
    """Return the step for the sidecar of an output that cannot store its own record.

    Args:
        command: Configuration of the command.
        out: The output.
        model_file: The model. It is the first input.
        options: Options with an influence on the output.
        seed: Seed of the stage.
        libraries: Further libraries with an influence on the output. Their versions are recorded.

    Returns:
        None if `--if-changed` is not given and no sidecar exists, or if the output or another input than the
        model is a stream.
    """
    _, *read = input_refs(command)
    streams = is_stream(out) or any(ref.is_stream for ref in read)
    if streams or not (command.if_changed or has_sidecar(out)):
        return None
    inputs = [model_file.as_input(), *(InputFile(name=ref.name, sha256=ref.digest()) for ref in read)]
    step = make_step(command, family=model_file.family, options=options, inputs=inputs, seed=seed)
    return step.model_copy(update={"versions": step.versions | versions(*libraries)})


def has_sidecar(path: Path) -> bool:
    """Return whether an output has a valid sidecar."""
    try:
        return bool(Sidecar.read(Sidecar.path_of(path)))
    except InputError:
        return False


def document_input(path: Path, digest: str | None = None, *, made_by: Step | None = None) -> InputFile:
    """Return the provenance entry of a JSON file.

    Args:
        path: The file.
        digest: Digest of its content. Required for a stream, because it cannot be read twice.
        made_by: Step of the file.
    """
    name = "-" if is_stream(path) else path.name
    return InputFile(name=name, sha256=digest or digest_file(path), made_by=made_by)


def scored_data(importance: HeadImportance) -> list[InputFile]:
    """Return the provenance entries of the data for head importances."""
    return [
        SampledFile(
            name=DataRef.parse(data.reference).name,
            sha256=data.sha256,
            samples=importance.samples.get(data.sha256, ""),
        )
        for _, data in sorted(importance.data.items())
    ]


def importance_step(importance: HeadImportance, model_file: OpenModel | None = None) -> Step:
    """Return the step of a scores file.

    Args:
        importance: Content of the scores file.
        model_file: A model. If the scores belong to this model, the step includes the model's provenance.
    """
    model = InputFile(name=importance.model.reference, sha256=importance.model.sha256)
    if model_file is not None and (source := model_file.as_input()).sha256 == model.sha256:
        if source.made_by is not None and source.made_by.command == "score":
            return source.made_by  # training with gates writes the model and its scores in the same step
        model = source
    objective = {} if importance.objective is None else {"objective": importance.objective}
    return Step(
        command="score",
        options={"method": importance.method, **objective, **importance.options},
        inputs=(model, *scored_data(importance)),
        results=importance.results,
        versions=importance.versions,
        config_digest=importance.config_digest,
        argv=importance.argv,
    )


def report_step(report: Report) -> Step:
    """Return the step of a report, with inputs in the order of the settings of `eval`."""
    first, *others = report.rows
    beside = [name for name in (TEMPERATURE, FIT, *report.ood_val, VAL) if name in report.data]
    sources = [
        *first.models,
        *(report.data[name] for name in (ID_NAME, *report.near, *report.far)),
        *(model for row in others for model in row.models),
        *(report.data[name] for name in beside),
        *report.further_inputs(),
    ]
    return Step(
        command="eval",
        options=report.options,
        inputs=tuple(InputFile(name=s.reference, sha256=s.sha256) for s in sources),
        versions=report.versions,
        config_digest=report.config_digest,
    )


def read_record(path: Path, command: str, *, beside: bool = False) -> OutputRecord | None:
    """Read the provenance of an output.

    Args:
        path: The output.
        command: Name of the command that will write the output.
        beside: Whether the command records provenance only in a sidecar, and only with `--if-changed`.

    Returns:
        None for missing and empty files.

    Raises:
        ForeignOutputError: If another command made the output, or its provenance is unknown.
    """
    try:
        record = _read(path)
        if record is None or record.step.command == command:
            return record
        made_by = record.step.command
    except (HydraError, NotJSONError, UnicodeDecodeError):
        made_by = ""
    hint = "choose another name with `-o`, move it to another place, or replace `--if-changed` by `--force`"
    if beside and not has_sidecar(path):  # `--force` would write no sidecar either
        finding = (
            f"was not made by hydractl with `--if-changed`: it has no {Sidecar.path_of(path).name} "
            "that records how it was made"
        )
        hint = "move it to another place and run the same command again, or choose another name with `-o`"
    elif made_by:
        finding = f"was made by `hydractl {made_by}`"
    else:
        finding = (
            "has changed since it was written" if has_sidecar(path) else "does not record how it was made"
        )
    raise ForeignOutputError(path, finding, command=command, hint=hint)


def check_comparable(command: CommandConfig) -> tuple[Path, ...]:
    """Return the paths of all outputs compared by `--if-changed`.

    Raises:
        UsageError: If there is no output to compare, an input or output is a stream, or `--force` is given
            too.
    """
    if command.force:
        raise UsageError("`--force` and `--if-changed` exclude each other", hint="leave one of them out")
    paths = command.output_files()
    streams = [str(path) for path in paths if is_stream(path)]
    streams += [str(input_ref.ref) for input_ref in input_refs(command) if input_ref.is_stream]
    if streams:
        raise UsageError(
            f"`--if-changed` and `{streams[0]}` exclude each other: a stream cannot be compared",
            hint="use a file, or leave out `--if-changed`",
        )
    if command.out is None:
        raise UsageError("`--if-changed` needs an output to compare with", hint="add `-o FILE`")
    return paths


def _output_records(command: CommandConfig) -> dict[Path, OutputRecord | None]:
    """Read the provenance of each output. Missing files have the value None."""
    beside = IF_CHANGED_BESIDE in declared(type(command)).values()
    return {path: read_record(path, command.COMMAND, beside=beside) for path in check_comparable(command)}


def _reason(command: CommandConfig, outputs: Sequence[OutputRecord]) -> str | None:
    """Return why outputs must be rebuilt, or None if they are up to date."""
    complete = [output for output in outputs if output.complete]
    digest = config_digest(command)
    for output in outputs:
        recorded = output.step.config_digest
        if recorded != digest and (output.complete or recorded):
            return "it was made with other options" + _other_options(output.step.argv, recorded_argv(command))
    for name, version in (pair for output in complete for pair in output.step.versions.items()):
        if (installed := _installed(name)) != version:
            return f"it was made with {name} {version}, but {installed} is installed"
    masks = [mask for output in complete for mask in output.masks]
    rows = {row for output in complete for row in output.rows}
    if not all(o.intact and o.rows <= rows and all(mask in masks for mask in o.masks) for o in outputs):
        return "its files have changed since they were written"
    if len(complete) == 1:
        return _other_input(command, [source.sha256 for source in complete[0].step.inputs])
    # Scores may belong to weights that the same command wrote. In this case the record of the weights has the
    # inputs, and must come first.
    written = {digest_file(output.path) for output in complete}
    complete.sort(key=lambda output: not output.masks)
    sources = dict.fromkeys(source.sha256 for output in complete for source in output.step.inputs)
    return _other_input(command, [digest for digest in sources if digest not in written])


def _other_options(before: Sequence[str] | None, after: Sequence[str] | None) -> str:
    """Describe the changed arguments and options; empty if a command line is unknown or both are equal."""
    if before is None or after is None:
        return ""
    old, new = Counter(_options(before)), Counter(_options(after))
    removed, added = (quoted(words, most=MOST_OPTIONS) for words in (old - new, new - old))
    text = f"{removed}, now {added or 'left out'}" if removed else f"without {added}"
    return shortened(f": {text}", VALUE) if removed or added else ""


def _options(argv: Sequence[str]) -> list[str]:
    """Split a command line into arguments, and options with their values."""
    options: list[str] = []
    for word in argv:
        last = options[-1] if options else ""
        if last.startswith("--") and not word.startswith("--"):
            options[-1] += f" {word}"
        else:
            options.append(word)
    return options


def _other_input(command: CommandConfig, recorded: Sequence[str]) -> str | None:
    """Return a message about the first changed input, or None.

    An input with several names may be recorded only once.
    """
    visited: set[str] = set()
    place = 0
    for ref in input_refs(command):
        named = {f"{ref.role} {ref.ref}"}
        digests = named if ref.is_generated else named | ref.digests()
        # Generated data are compared by name, and a repeated name by the digest recorded for the first.
        comparable = visited if ref.is_generated and named & visited else digests
        if place < len(recorded) and (
            recorded[place] in comparable or (ref.is_generated and comparable is digests)
        ):
            visited |= {*digests, recorded[place]}
            place += 1
        elif not digests & visited:
            return f"`{ref.name}` has changed"
    return None if place == len(recorded) else "it was made from more inputs"


def _installed(name: str) -> str:
    try:
        return versions(name)[name]
    except ModuleNotFoundError:  # raised by `importlib.metadata` for missing packages
        return "none"


def _read(path: Path) -> OutputRecord | None:
    if is_folder(path):
        return _of_folder(path)
    if not has_content(path):
        return None
    if has_content(beside := Sidecar.path_of(path)):
        sidecar = Sidecar.read(beside)
        if sidecar.sha256 != digest_file(path):
            raise InputError(f"{path}: has changed since it was written")
        return OutputRecord(path=path, step=sidecar.made_by)
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
    from hydractl.hub.layout import files_of, model_files  # noqa: PLC0415 - most outputs are files

    if not has_content(folder / WEIGHTS):
        if model_files(folder) and not (folder / WEIGHTS).exists():
            raise InputError(f"{folder}: contains a model that hydractl did not write")
        return None
    checkpoint = Checkpoint.open(folder / WEIGHTS)
    record = _of_checkpoint(checkpoint)
    written = {} if checkpoint.header is None else files_of(checkpoint.header)
    present = {path.name: path.read_bytes() for path in model_files(folder) if path.name != WEIGHTS}
    return replace(record, intact=present == written)


def _of_checkpoint(checkpoint: Checkpoint) -> OutputRecord:
    header, path = checkpoint.header, checkpoint.paths[0]
    if header is None and {name.partition("/")[0] for name in checkpoint.specs} <= PREDICTIONS:
        rows = frozenset(n.split("/")[1] for n in checkpoint.specs if not n.startswith("labels/"))
        return OutputRecord(path=path, step=Step(command="eval", options={}), complete=False, rows=rows)
    if header is None or header.made_by is None:
        raise InputError(f"{path}: does not record how it was made")
    if header.made_by.command == "eval":  # copy of a measured model, next to the report
        return OutputRecord(path=path, step=header.made_by, complete=False)
    return OutputRecord(path=path, step=header.made_by, masks=header.masks)


def _of_document(document: Document, path: Path) -> OutputRecord:
    if isinstance(document, HeadImportance):
        return OutputRecord(path=path, step=importance_step(document))
    if isinstance(document, Report):
        rows = frozenset(row.name for row in document.rows)
        return OutputRecord(path=path, step=report_step(document), rows=rows)
    if isinstance(document, HeadMask) and document.origin is not None:
        step = Step(command="prune", options={})
        return OutputRecord(path=path, step=step, complete=False, masks=(document.towers,))
    raise InputError(f"{path}: does not record how it was made")


Begin = Callable[..., "Sink"]
"""Opens an output of a publication; see `Output.publish`."""


class Output:
    """Outputs of a command.

    `claim` locks the outputs against other commands. `check` compares the paths with the inputs before any
    work. `publish` writes either all outputs, with provenance, or no output. `outdated` compares existing
    outputs with the command and returns why they must be rebuilt.
    """

    @staticmethod
    def outdated(command: CommandConfig) -> str | None:
        """Return why `--if-changed` must rebuild the outputs of a command, or None if they are up to date.

        The reason is empty if no output exists.

        Raises:
            UsageError: If there is no output to compare, an input or output is a stream, or `--force` is
                given too.
            OutputExists: If another command made the file at an output's path.
        """
        records = _output_records(command)
        missing = next((path for path, record in records.items() if record is None), None)
        if missing is not None:
            return f"{missing} is missing or empty" if any(records.values()) else ""
        try:
            return _reason(command, [record for record in records.values() if record is not None])
        except HydraError:  # the command itself raises the same error, with the input and the reason
            return "an input cannot be read"

    def __init__(self, lock: OutputLock | None) -> None:
        """Store a lock. A process without outputs passes None; then `check` accepts all paths."""
        self.lock = lock

    @classmethod
    @contextmanager
    def claim(
        cls,
        command: CommandConfig,
        paths: Iterable[Path | None],
        *,
        writes: bool = True,
        force: bool | None = None,
    ) -> Iterator[Output]:
        """Lock the outputs of a command while the block runs; see `claimed`.

        Args:
            command: Configuration of the command.
            paths: The outputs. The lock file belongs to the first output that is not a stream.
            writes: Whether this process writes the outputs.
            force: Whether existing files may be replaced. None allows replacement with `--force`, and with
                `--if-changed` if the same command made the files.

        Raises:
            UsageError: If `--if-changed` is given and has nothing to compare; see `outdated`.
            OutputExists: If another command made a file, or `claimed` cannot lock the output.
        """
        if force is None:
            force = command.force or command.if_changed
            if command.if_changed:
                _output_records(command)
        if not writes:
            yield cls(None)
            return
        first = next((path for path in paths if path is not None and not is_stream(path)), None)
        with claimed(first, force=force, wait=command.wait) as lock:
            yield cls(lock)

    def check(
        self,
        *paths: Path | None,
        models: Iterable[OpenModel] = (),
        data: Iterable[DataRef | str | None] = (),
        files: Iterable[Path | None] = (),
        option: str = "-o",
        folders: bool = False,
        sidecars: bool = False,
    ) -> None:
        """Check before any work whether outputs can be written and may be replaced.

        Args:
            paths: The outputs; `-` is standard output.
            models: Models read by the command.
            data: Data sets read by the command: a file, or all files of a folder. Images named in tables are
                not compared.
            files: Other files read by the command: scores, masks, lists of names.
            option: Option for the outputs, for hints.
            folders: Whether outputs are models, each stored in a file or in a folder.
            sidecars: Whether each output may have a sidecar.

        Raises:
            OutputExists: If an output is an input, or exists and may not be replaced.
            OutputError: If an output cannot be written.
            UsageError: If a data reference is malformed.
        """
        if self.lock is None:
            return
        refs = [DataRef.parse(ref) if isinstance(ref, str) else ref for ref in data if ref is not None]
        read_files = [
            *(path for model in models for path in model.files),
            *(Path(ref.source) for ref in refs if ref.kind is SourceKind.FILE),
            *(path for path in files if path is not None),
        ]
        read_folders = [Path(ref.source) for ref in refs if ref.kind is SourceKind.FOLDER]
        for path in filter(None, paths):
            beside = Sidecar.path_of(path) if sidecars else None
            if beside and (beside.is_symlink() or has_content(beside)) and not has_sidecar(path):
                raise OutputExists(
                    f"{beside}: the record of how {path.name} was made goes here, but the existing file is not from hydractl",
                    hint="move it to another place, or choose another name with `-o`",
                )
            targets, in_folder = [path], folders and is_folder(path)
            if in_folder:
                check_folder(path)
                targets = _model_files(path)
            for target in targets:
                force = in_folder or self.lock.may_replace(target)
                check_output(target, force=force, inputs=read_files, folders=read_folders, option=option)
            if in_folder and not self.lock.may_replace(path):
                self._check_free(path, targets)

    def _check_free(self, folder: Path, files: Iterable[Path]) -> None:
        """Raise OutputExists if a folder contains model files that may not be replaced."""
        for file in files:
            if has_content(file) and self.lock is not None and not self.lock.may_replace(file):
                raise OutputExists(
                    f"{folder}: already contains a model (`{file.name}`)",
                    hint="add `--force` to replace it, or choose another name with `-o`",
                )

    @contextmanager
    def publish(self) -> Iterator[Begin]:
        """Open outputs for writing, and publish all of them at the end of the block, or none after an error.

        If a model in a folder is replaced, old files without a counterpart in the new model are removed.

        Yields:
            Function to open an output, given the path. For a model, the function also takes the header, in
            which the provenance may be preliminary. In a folder, the weights are written together with the
            library's other files. `made_by` is the step for the sidecar of an output without its own record.
        """
        stale: list[Path] = []
        sidecars: list[tuple[Sink, Digested, Step]] = []
        with publish_together(self.lock or OutputLock(force=False)) as begin:

            def begin_output(
                path: Path, header: Header | None = None, *, made_by: Step | None = None
            ) -> Sink:
                if made_by is not None:
                    sidecars.append((begin(Sidecar.path_of(path)), Digested(begin(path)), made_by))
                    return sidecars[-1][1]
                if header is None or not is_folder(path):
                    return begin(path)
                from hydractl.hub.layout import files_of  # noqa: PLC0415 - most outputs are files

                files = files_of(header)
                stale.extend(file for file in _model_files(path) if file.name not in {*files, WEIGHTS})
                for name, content in files.items():
                    begin(path / name).write(content)
                return begin(path / WEIGHTS)

            yield begin_output
            for sidecar, file, step in sidecars:
                sidecar.write(Sidecar(sha256=file.digest, made_by=step).to_json().encode())
        # Only after publication: if the block fails, the old model must stay complete.
        for path in stale:
            path.unlink()


def _model_files(folder: Path) -> list[Path]:
    from hydractl.hub.layout import model_files  # noqa: PLC0415 - most outputs are files

    return [*model_files(folder)]


RESUME_SUFFIXES = (".journal", ".state")


@contextmanager
def resumable(out: Path, *, force: bool = False) -> Iterator[None]:
    """Tell the user on an interruption where progress is saved and how to resume.

    Args:
        out: The output. A run stores its progress in a `.journal` or `.state` file next to the output.
        force: Whether the command discards the progress of earlier runs.

    Raises:
        KeyboardInterrupt: The interruption, with a note.
        Interrupted: The interruption, with a hint.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        if note := resume_hint(out, force=force):
            error.add_note(note)
            if isinstance(error, Interrupted):
                error.hint = HINT.replace("run the same command again", note)
        raise


def resume_hint(out: Path, *, force: bool) -> str | None:
    """Return a sentence on the saved progress of a run and how to resume, or None without saved progress.

    Args:
        out: The output.
        force: Whether the command discards the progress of earlier runs.
    """
    resume_paths = [] if is_stream(out) else [out.with_name(out.name + suffix) for suffix in RESUME_SUFFIXES]
    existing = [str(path) for path in resume_paths if path.exists()]
    if not existing:
        return None
    moved = f"move {out} to another place, then " if force and out.exists() else ""
    command_text = "the same command without `--force`" if force else "the same command"
    return f"the progress is saved in {' and '.join(existing)}; {moved}{command_text} resumes it"
