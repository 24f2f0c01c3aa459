"""Journal of a greedy method next to the output, for resuming an interrupted run.

The file is replaced in one operation after each removal, so a kill at any time leaves the old or the new
journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from hydractl import progress
from hydractl.errors import ManifestError, OutputExists, reason_of
from hydractl.manifest.document import Digest, SealedDocument
from hydractl.manifest.head_mask import HeadId, HeadImportance, Removal, Shape
from hydractl.messages import counted
from hydractl.output.publish import has_content, is_stream, publish_text
from hydractl.processes.distributed import ProcessGroup
from hydractl.runtime import digest_text
from hydractl.scoring.job import NOTHING_LEARNT, Log, Memory
from hydractl.strict_json import read_limited
from hydractl.training.resume import DROPPED, FORCED, OTHERS, OtherRunError, changes, texts_of

_MARK = b'"hydractl.journal/'


class JournalFile(SealedDocument):
    """Content of a journal.

    Attributes:
        fingerprint: Digest of everything that determines the result.
        settings: Settings of the run, from `settings_of`.
        baseline: Objective with all heads, or None before it is known.
        removals: Removals in order.
        memory: State of the search after the last removal.
    """

    kind_of_file: ClassVar[str] = "journal"

    schema_: Literal["hydractl.journal/2"] = Field(default="hydractl.journal/2", alias="schema")
    fingerprint: Digest
    settings: dict[str, str]
    baseline: float | None = None
    removals: tuple[Removal, ...] = ()
    memory: dict[str, tuple[float, ...]] = Field(default={})


class ScoreJournal(Log):
    """Log of a greedy method in a file.

    Attributes:
        file: Content of the journal so far.
        path: Path of the file; None for an output stream, and in all processes except the leading process.
    """

    def __init__(self, file: JournalFile, path: Path | None = None) -> None:
        """Continue a journal, or start an empty one."""
        super().__init__(baseline=file.baseline, recorded=file.removals, memory=file.memory)
        self.file, self.path = file, path

    @override
    def begin(self, baseline: float) -> None:
        self._replace(baseline=baseline)
        if not self.recorded:
            self.run_log.log({"objective": baseline}, step=0)

    @override
    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        self._replace(removals=(*self.file.removals, removal), memory=dict(memory))
        self.run_log.log({"objective": removal.objective}, step=len(self.file.removals))

    def _replace(self, **changes: object) -> None:
        self.file = self.file.model_copy(update=changes).sealed()
        if self.path is not None:
            publish_text(self.path, self.file.to_json())

    def discard(self) -> None:
        """Remove the file. Call it after the output is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def settings_of(document: HeadImportance) -> dict[str, str]:
    """Return the settings with influence on the result, in short form for messages.

    Models and data are described by reference and digest.
    """
    inputs = {"model": document.model, **{f"{role} data": data for role, data in document.data.items()}}
    return texts_of(
        {"method": document.method, "objective": document.objective, **document.options}
        | {
            name: f"{fingerprint.reference[-30:]} ({fingerprint.sha256[:19]})"
            for name, fingerprint in inputs.items()
        }
        | {"tool": document.tool}
    )


def open_journal(
    out: Path,
    document: HeadImportance,
    *,
    heads: Shape,
    team: ProcessGroup,
    force: bool = False,
    if_changed: bool = False,
) -> ScoreJournal:
    """Open the journal of an output, `OUT.journal`. A stream has no journal file.

    The leading process opens the file and sends the content to the other processes.

    Args:
        out: Path of the output.
        document: Scores file without scores: everything that determines the result.
        heads: Number of layers and heads of each tower, for heads that may be removed.
        team: Process group.
        force: Whether to discard an existing journal.
        if_changed: Whether to discard the journal of a run with other options, inputs or versions.

    Raises:
        OutputExists: If the file belongs to another run, or is not a journal.
        ManifestError: If the journal is damaged.
    """
    if team.leads:
        new = JournalFile(fingerprint=digest_text(document.to_json()), settings=settings_of(document))
        path = None if is_stream(out) else out.with_name(f"{out.name}.journal")
        file = new if path is None else _stored(path, new, heads, force=force, if_changed=if_changed)
        journal = ScoreJournal(file, path)
        team.broadcast(file.to_json())
    else:
        journal = ScoreJournal(JournalFile.from_json(team.broadcast(""), place="the journal"))
    if journal.recorded:
        progress.step(f"Resuming an interrupted run after {counted(len(journal.recorded), 'removal')}")
    return journal


def _stored(path: Path, new: JournalFile, heads: Shape, *, force: bool, if_changed: bool) -> JournalFile:
    """Return the stored journal of this run, or a new journal."""
    if not (path.is_symlink() or has_content(path)):
        return new
    content, why = _content(path), FORCED
    if not force:
        try:
            stored = JournalFile.from_json(content.decode(errors="replace"), place=str(path))
            _check(stored, heads if stored.fingerprint == new.fingerprint else None)
        except (ManifestError, ValueError) as error:
            raise ManifestError(
                f"{path}: is damaged: {reason_of(error).removeprefix(f'{path}: ')}",
                hint="add `--force` to discard it and start again",
            ) from error
        if stored.fingerprint == new.fingerprint:
            return stored
        if not if_changed:
            raise OtherRunError(path, changes(stored.settings, new.settings))
        why = OTHERS
    progress.warn(DROPPED.format(why=why, place=path))
    return new


def _content(path: Path) -> bytes:
    """Return the bytes of a journal.

    Raises:
        OutputExists: If the file is not a journal of hydractl.
        ManifestError: If the file cannot be read.
    """
    content = b""
    if path.is_file() and not path.is_symlink():
        try:
            with path.open("rb") as file:
                content = read_limited(file)
        except (OSError, ValueError) as error:
            raise ManifestError(
                f"{path}: cannot be read: {reason_of(error)}", hint="move it to another place"
            ) from error
    if _MARK not in content:
        raise OutputExists(
            f"{path}: the journal of the run goes here, but the existing file is not from this version of hydractl",
            hint="move it to another place, or choose another name with `-o`",
        )
    return content


def _check(stored: JournalFile, heads: Shape | None) -> None:
    """Raise if the digest is wrong, or a removed head does not exist or is removed twice.

    Args:
        stored: The journal.
        heads: Number of layers and heads of each tower; None to check the digest only.

    Raises:
        ValueError: If the journal is damaged.
    """
    if stored != stored.sealed():
        raise ValueError("its digest does not match")
    remaining = {
        HeadId(tower, layer, head)
        for tower, shape in (heads or {}).items()
        for layer in range(shape.layers)
        for head in range(shape.num_heads)
    }
    for removal in stored.removals if heads is not None else ():
        if removal.id not in remaining:
            raise ValueError(f"{removal.id} does not exist or is already removed")
        remaining.remove(removal.id)
