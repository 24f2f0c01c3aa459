"""A journal beside an output: what an interrupted greedy run has done so far, one JSON line a removal.

The first line fingerprints the run. A removal's line also holds what the search remembers then; the last one's counts. Every
line ends with a digest of itself and of the one before it. A line that was cut off by a kill is dropped; everything before it
counts. Of several processes one writes. A file whose first line is not of this kind is not ours, and never touched.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from pydantic import TypeAdapter
from typing_extensions import override

from hydractl.data.datasets import Items
from hydractl.errors import ManifestError, OutputExists, reason_of
from hydractl.families.load import OpenModel
from hydractl.manifest.head_mask import HeadId, HeadScores, Removal, Shape
from hydractl.messages import counted
from hydractl.output.publish import OutputLock, append, has_content, is_stream, publish_text
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.runtime import digest_text
from hydractl.scoring.job import NOTHING_LEARNT, Log, Memory, Ranking
from hydractl.stages.score.config import ScoreConfig
from hydractl.strict_json import compact, parse, read_limited
from hydractl.training.resume import DROPPED, FORCED, OTHERS, OtherRunError, changes, stored_texts, texts_of

SCHEMA = "hydractl.journal/1"
MEMORY, CHAIN = "memory", "chain"
LONGEST = 1 << 24
"""Maximum length of the first line, in bytes."""
_NUMBER: TypeAdapter[float | None] = TypeAdapter(float | None)
_MEMORY: TypeAdapter[dict[str, tuple[float, ...]]] = TypeAdapter(dict[str, tuple[float, ...]])


class MethodRun:
    """Steps of a run that only some methods have. This class is for methods without: it writes the scores."""

    resumes = False
    """Whether an interrupted training is resumed."""

    def check(self, config: ScoreConfig, opened: OpenModel, claim: OutputLock) -> None:
        """Refuse a model that the method cannot train, and outputs that cannot be written, before data are read."""

    def open_state(
        self, config: ScoreConfig, opened: OpenModel, document: HeadScores, progress: Progress
    ) -> None:
        """Open the state of an interrupted training of the scores of `document`."""

    def training(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        items: Items,
        labels: torch.Tensor,
        indices: torch.Tensor | None,
    ) -> object:
        """Return the training resources of the job, from the ID data at `indices` (None for all) and labels (N,) of all items."""

    def publish(
        self,
        config: ScoreConfig,
        opened: OpenModel,
        scores: HeadScores,
        ranking: Ranking,
        claim: OutputLock,
    ) -> HeadScores:
        """Write the scores and return them."""
        del opened, ranking
        publish_text(config.out, scores.to_json(), claim)
        return scores

    def clear_state(self) -> None:
        """Remove the state of the training."""


@dataclass(kw_only=True)
class ScoreJournal(Log):
    """Removals on disk, each there before the next begins.

    Attributes:
        path: None where nothing is written: for a stream, and in a process that does not lead.
        fingerprint: Of everything that shapes the output.
        settings: What of that a refusal may name, as `texts_of` has it.
    """

    path: Path | None = None
    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)
    chain: str = ""
    """Digest of the last line."""
    removals: int = 0
    """Number of removals that are logged, or were on disk."""

    @classmethod
    def parsed(cls, text: str, path: Path | None = None) -> Self:
        """Return what a journal says; a last line without its newline does not count.

        Raises:
            ValueError: If it is none, or a line does not follow from the one before it.
        """
        first, *documents = _followed(text) or [{}]
        memories = [_MEMORY.validate_python(document.pop(MEMORY, {})) for document in documents]
        return cls(
            path=path,
            fingerprint=str(first.get("fingerprint")),
            settings=stored_texts(first.get("settings")),
            baseline=_NUMBER.validate_python(first.get("baseline")),
            recorded=tuple(Removal.model_validate(document, strict=True) for document in documents),
            memory=memories[-1] if memories else NOTHING_LEARNT,
        )

    def text(self) -> str:
        """Return what the journal says, whole lines."""
        first: dict[str, object] = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "baseline": self.baseline,
        } | ({"settings": dict(self.settings)} if self.settings else {})
        removals = [_document(removal, NOTHING_LEARNT) for removal in self.recorded[:-1]]
        removals += [_document(removal, self.memory) for removal in self.recorded[-1:]]
        self.chain = ""
        return "".join(map(self._line, (first, *removals)))

    def _line(self, document: dict[str, object]) -> str:
        """Return a document as the next line."""
        self.chain = _link(self.chain, document)
        return json.dumps({**document, CHAIN: self.chain}) + "\n"

    @override
    def begin(self, baseline: float) -> None:
        """Write the first line of a new journal, or cut an old one back to its whole lines."""
        self.baseline, self.removals = baseline, len(self.recorded)
        if self.path is not None:
            publish_text(self.path, self.text())
        if not self.recorded:
            self.run_log.log({"objective": baseline}, step=0)

    @override
    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Add one removal, and what the search remembers after it."""
        if self.path is not None:
            append(self.path, self._line(_document(removal, memory)).encode())
        self.removals += 1
        self.run_log.log({"objective": removal.objective}, step=self.removals)

    def discard(self) -> None:
        """Remove the journal: its output is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def settings_of(document: HeadScores) -> dict[str, str]:
    """Return the settings that determine the scores as a refusal names them; models and data with names and digests."""
    inputs = {"model": document.model, **{f"{role} data": data for role, data in document.data.items()}}
    return texts_of(
        {"method": document.method, "objective": document.objective, **document.options}
        | {
            name: f"{fingerprint.reference[-30:]} ({fingerprint.sha256[:19]})"
            for name, fingerprint in inputs.items()
        }
        | {"tool": document.tool}
    )


def _document(removal: Removal, memory: Memory) -> dict[str, object]:
    return removal.model_dump() | ({MEMORY: dict(memory)} if memory else {})


def _link(before: str, document: dict[str, object]) -> str:
    """Return the digest that a line ends with."""
    return digest_text(before + compact(document, sort_keys=True))


def _followed(text: str) -> list[dict[str, object]]:
    """Return the whole lines of a journal, each of which follows from the one before it.

    Raises:
        ValueError: If one is no object, or does not follow.
    """
    documents, chain = [], ""
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        document = parse(line, keys_once=True)
        if not isinstance(document, dict):
            raise ValueError(f"line {number} is not a JSON object")  # noqa: TRY004 - translated by the caller
        stored_chain = document.pop(CHAIN, None)
        chain = _link(chain, document)
        if stored_chain != chain:
            raise ValueError(f"the digest of line {number} does not match")
        documents.append(document)
    return documents


def open_journal(
    config: ScoreConfig, document: HeadScores, *, heads: Shape, team: ProcessGroup, progress: Progress
) -> ScoreJournal:
    """Open the journal of an output, `<out>.journal`; a stream has none.

    The process that leads opens it; the others are told what it holds, and write none.

    Args:
        config: What was asked: which output is being made, and whether what another run left is dropped.
        document: Everything else that decides the scores.
        heads: Those that may be removed.
        team: The processes.
        progress: Hears of it.

    Raises:
        OutputExists: If another run's journal is there, or something that is not ours.
        ManifestError: If a damaged one is.
    """
    if team.leads:
        new = ScoreJournal(fingerprint=digest_text(document.to_json()), settings=settings_of(document))
        journal = _opened(config, new, heads=heads, progress=progress)
        team.broadcast(journal.text())
    else:
        journal = ScoreJournal.parsed(team.broadcast(""))
    if journal.recorded:
        progress.step(f"Resuming an interrupted run after {counted(len(journal.recorded), 'removal')}")
    return journal


def _opened(config: ScoreConfig, new: ScoreJournal, *, heads: Shape, progress: Progress) -> ScoreJournal:
    if is_stream(config.out):
        return new
    path = config.out.with_name(f"{config.out.name}.journal")
    text = _text(path)
    if config.force and text:
        progress.warn(DROPPED.format(why=FORCED, where=path))
    new.path = path
    if config.force or not text:
        return new
    try:
        journal = ScoreJournal.parsed(text, path)
        if journal.fingerprint == new.fingerprint:
            _check_heads(journal.recorded, heads)
    except ValueError as error:
        raise ManifestError(
            f"{path}: is damaged: {reason_of(error)}",
            hint="add `--force` to discard it and start again",
        ) from error
    if journal.fingerprint != new.fingerprint and config.if_changed:
        progress.warn(DROPPED.format(why=OTHERS, where=path))
        return new
    if journal.fingerprint != new.fingerprint:
        raise OtherRunError(path, changes(journal.settings, new.settings))
    return journal


def _check_heads(removals: tuple[Removal, ...], heads: Shape) -> None:
    """Refuse removals of heads that are not there, or that are gone already.

    Raises:
        ValueError: If one is so.
    """
    removed: set[HeadId] = set()
    for removal in removals:
        shape, head = heads.get(removal.tower), removal.id
        if (
            shape is None
            or removal.layer >= shape.layers
            or removal.head >= shape.num_heads
            or head in removed
        ):
            raise ValueError(f"{head} does not exist or is already removed")
        removed.add(head)


def _is_journal(path: Path) -> bool:
    """Return whether the first line of a file is that of a journal. Other files are never read further or changed."""
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                first = parse(file.readline(LONGEST))
            return isinstance(first, dict) and first.get("schema") == SCHEMA
    return False


def _text(path: Path) -> str:
    """Return what a journal says, nothing where there is none.

    Raises:
        OutputExists: If something stands there that is not ours.
        ManifestError: If it cannot be read.
    """
    if not (path.is_symlink() or has_content(path)):
        return ""
    if not _is_journal(path):
        raise OutputExists(
            f"{path}: the journal of the run goes here, but the existing file is not from this version of hydractl",
            hint="move it to another place, or choose another name with `-o`",
        )
    try:
        with path.open("rb") as file:
            return read_limited(file).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise ManifestError(
            f"{path}: cannot be read: {reason_of(error)}", hint="move it to another place"
        ) from error
