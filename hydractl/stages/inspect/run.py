"""inspect: describe a file of any kind, or show the stages before a model and verify their input files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hydractl import progress
from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckFailed, CheckpointError, UsageError
from hydractl.manifest.document import Document
from hydractl.manifest.header import InputFile, Step, lineage_to
from hydractl.messages import counted, quoted
from hydractl.model_source import HUB_ID, Located, locate
from hydractl.progress import stage
from hydractl.reporting.file_contents import CheckpointReport, describe_checkpoint, open_any
from hydractl.runtime import digest_file
from hydractl.stages.inspect.config import InspectConfig
from hydractl.training.resume import NAME, StateFile

JSON = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """Content of a JSON file of hydractl, or of the state file in the folder of a training run.

    Attributes:
        file: Path as typed.
        kind: `scores`, `head-mask`, `report` or `training-state`.
        document: The parsed file.
        paths: Written files: always empty.
    """

    file: str
    kind: str
    document: Document
    paths: ClassVar[tuple[Path, ...]] = ()


@stage
def run_inspect(config: InspectConfig) -> CheckpointReport | DocumentReport:
    """Describe a file by its content. The name of the file has no influence.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is malformed or not from hydractl.
        InputError: If the file is neither, or cannot be read.
        UsageError: If `--tensors` is given for a JSON file.
    """
    document, located = _open_local(config.file)
    if isinstance(document, Checkpoint):
        return describe_checkpoint(config.file, document, located, lists_tensors=config.tensors)
    if config.tensors:
        raise UsageError(
            f"{config.file}: is a {document.kind_of_file} file; `--tensors` is for checkpoints",
            hint="leave it out",
        )
    return DocumentReport(file=config.file, kind=document.kind_of_file, document=document)


def _open_local(file: str) -> tuple[Checkpoint | Document, Located]:
    path = Path(file.removeprefix("local-dir:"))
    if HUB_ID.match(file) and path.suffix not in {".st", ".safetensors", ".json"} and not path.exists():
        raise CheckpointError(
            f"{file}: no such file or folder",
            hint="for a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        )
    if (path / NAME).is_file():
        return StateFile.read(path / NAME), Located(reference=file, path=path)
    located = locate(file)
    if located.path.is_dir():
        return Checkpoint.open(located.path, shards=located.weights), located
    return open_any(located.path), located


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Verification of a file.

    Attributes:
        file: Path as typed.
        sha256: Digest of the file; for a model, of its shards in order.
        read_as: Name of the file in the lineage; None for unknown files.
        problem: Reason of a failed verification; empty if the verification passed.
    """

    file: str
    sha256: str
    read_as: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReport:
    """Lineage of a model.

    Attributes:
        model: Reference as typed.
        kind: Base, member or hydra.
        step: Last step; None if unknown.
        verified: Verification of the given files.
        left: Files from steps of the lineage that were not given; empty if no files were given.
    """

    model: str
    kind: str
    step: Step | None
    verified: tuple[Verified, ...] = ()
    left: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    def require_checks(self) -> None:
        """Raise an error if a file does not match the lineage.

        Raises:
            CheckFailed: The message has the names of the files.
        """
        if wrong := [verified_file.file for verified_file in self.verified if verified_file.problem]:
            raise CheckFailed(
                f"{len(wrong)} of {counted(len(self.verified), 'file')} do not match the lineage of "
                f"{self.model}: {quoted(wrong)}"
            )


@stage
def run_lineage(config: InspectConfig) -> LineageReport:
    """Read a model's lineage, and verify files with the lineage.

    Raises:
        CheckpointError: If the model or a file cannot be read, or the model has no lineage.
    """
    header = _open(config.file).header
    if header is None:
        raise CheckpointError(
            f"{config.file}: has no lineage",
            hint="files that hydractl writes have one: use `hydractl import` or `hydractl finetune`",
        )
    recorded = tuple(source for step in lineage_to(header.made_by) for source in step.inputs)
    verified = tuple(
        _verified(file, recorded) for file in progress.track(config.of, label="files", total=len(config.of))
    )
    verified_ids = {
        verified_file.read_as if verified_file.problem else verified_file.sha256 for verified_file in verified
    }
    files_of_stages = {source.sha256: source.name for source in recorded if source.made_by is not None}
    return LineageReport(
        model=config.file,
        kind=header.kind.value,
        step=header.made_by,
        verified=verified,
        left=tuple(name for digest, name in files_of_stages.items() if not {digest, name} & verified_ids)
        if verified
        else (),
    )


def _open(reference: str) -> Checkpoint:
    located = locate(reference)
    if located.arch is not None:
        raise CheckpointError(f"{reference}: random weights have no lineage")
    return Checkpoint.open(located.path, shards=located.weights if located.path.is_dir() else ())


def _verified(file: str, recorded: tuple[InputFile, ...]) -> Verified:
    checkpoint = None if file.lower().endswith(JSON) else _open(file)
    try:
        digest = checkpoint.digest if checkpoint else digest_file(Path(file))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    name, problem = Path(file).name, "no stage read a file with this name or content"
    source = next((source for source in recorded if source.sha256 == digest), None)
    if source is not None:
        header = checkpoint.header if checkpoint else None
        forged = header is not None and header.made_by != source.made_by
        problem = f"has another history than the lineage records for `{source.name}`" if forged else ""
    elif source := next((source for source in recorded if source.name == name), None):
        problem = f"is not the `{name}` that was read ({source.sha256})"
    return Verified(file=file, sha256=digest, read_as=source.name if source else None, problem=problem)
