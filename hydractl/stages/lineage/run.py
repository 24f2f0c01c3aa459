"""lineage: which stages led to a model, and whether files are the ones that they read. Headers alone are read of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.manifest.header import InputFile, Step, steps_to
from hydractl.messages import counted, quoted
from hydractl.model_source import locate
from hydractl.progress import SILENT, Progress
from hydractl.runtime import digest_file
from hydractl.stages.lineage.config import LineageConfig

JSON = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of one file.

    Attributes:
        file: As it was named.
        sha256: Of its bytes, of a model's shards in order.
        read_as: What it was called where it was read; None where no stage read such a file.
        problem: Why it is not what it claims; empty where it is.
    """

    file: str
    sha256: str
    read_as: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageReport:
    """Where a model is from.

    Attributes:
        model: As it was named.
        kind: Of checkpoint.
        step: The last stage; None where nothing says one.
        verified: What came of the files that were given.
        left: Of the files that stages of the lineage made, those that were not given; empty where none was.
    """

    model: str
    kind: str
    step: Step | None
    verified: tuple[Verified, ...] = ()
    left: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    def require_checks(self) -> None:
        """Make files that are not what they claim an error.

        Raises:
            CheckFailed: Naming them.
        """
        wrong = [verified_file.file for verified_file in self.verified if verified_file.problem]
        if wrong:
            raise CheckFailed(
                f"{len(wrong)} of {counted(len(self.verified), 'file')} not what the lineage of {self.model} says: "
                f"{quoted(wrong)}"
            )


def run_lineage(config: LineageConfig, progress: Progress = SILENT) -> LineageReport:
    """Read a model's lineage, and hold files against it.

    Raises:
        CheckpointError: If the model or a file cannot be read, or the model was not made by a command of ours.
    """
    header = _open(config.model).header
    if header is None:
        raise CheckpointError(
            f"{config.model}: says nothing of where it is from",
            hint="files that hydractl wrote do: `hydractl import` or `hydractl finetune` makes one",
        )
    recorded = tuple(source for step in steps_to(header.made_by) for source in step.inputs)
    verified = tuple(
        _verified(file, recorded) for file in progress.track(config.of, label="files", total=len(config.of))
    )
    verified_ids = {
        verified_file.read_as if verified_file.problem else verified_file.sha256 for verified_file in verified
    }
    files_of_stages = {source.sha256: source.name for source in recorded if source.made_by is not None}
    return LineageReport(
        model=config.model,
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
        raise CheckpointError(f"{reference}: random weights are of no file")
    return Checkpoint.open(located.path, shards=located.weights if located.path.is_dir() else ())


def _verified(file: str, recorded: tuple[InputFile, ...]) -> Verified:
    checkpoint = None if file.lower().endswith(JSON) else _open(file)
    try:
        digest = checkpoint.digest if checkpoint else digest_file(Path(file))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    name = Path(file).name
    for source in recorded:
        if source.sha256 == digest:
            header = checkpoint.header if checkpoint else None
            forged = header is not None and header.made_by != source.made_by
            problem = f"tells of itself what the lineage does not tell of `{source.name}`" if forged else ""
            return Verified(file=file, sha256=digest, read_as=source.name, problem=problem)
    for source in recorded:
        if source.name == name:
            problem = f"is not the `{name}` that was read, {source.sha256}"
            return Verified(file=file, sha256=digest, read_as=name, problem=problem)
    return Verified(file=file, sha256=digest, problem="no stage read a file of this name or content")
