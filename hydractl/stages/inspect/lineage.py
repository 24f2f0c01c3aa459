"""inspect --lineage: shows the stages that made a model, and verifies the files that they read. Reads only headers of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hydractl import progress
from hydractl.checkpoint import Checkpoint
from hydractl.errors import CheckFailed, CheckpointError
from hydractl.manifest.header import InputFile, Step, steps_to
from hydractl.messages import counted, quoted
from hydractl.model_source import locate
from hydractl.progress import stage
from hydractl.runtime import digest_file
from hydractl.stages.inspect.config import InspectConfig

JSON = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Verification of one file.

    Attributes:
        file: Path as typed.
        sha256: Digest of its bytes; for a model of its shards in order.
        read_as: Its name when it was read; None if no stage read such a file.
        problem: Reason why verification failed; empty if it did not.
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
        kind: Kind of checkpoint.
        step: Last stage; None if unknown.
        verified: Verification of the given files.
        left: Files made by stages of the lineage that were not given; empty if no files were given.
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
            CheckFailed: If files do not match; the message names them.
        """
        if wrong := [verified_file.file for verified_file in self.verified if verified_file.problem]:
            raise CheckFailed(
                f"{len(wrong)} of {counted(len(self.verified), 'file')} do not match the lineage of "
                f"{self.model}: {quoted(wrong)}"
            )


@stage
def run_lineage(config: InspectConfig) -> LineageReport:
    """Read a model's lineage, and verify files with it.

    Raises:
        CheckpointError: If the model or a file cannot be read, or the model was not made by hydractl.
    """
    header = _open(config.file).header
    if header is None:
        raise CheckpointError(
            f"{config.file}: has no lineage",
            hint="files that hydractl writes have one: use `hydractl import` or `hydractl finetune`",
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
