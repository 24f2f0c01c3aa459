"""A journal beside an output: what an interrupted greedy run has done so far, one JSON line a removal.

The first line fingerprints the run. A removal's line also holds what the search remembers then; the last one's counts. A line that was cut off by a kill is dropped; everything before it counts.
Of several processes one writes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from hydractl.errors import ManifestError
from hydractl.jsonfile import parse
from hydractl.manifest.heads import Removal
from hydractl.parallel import Team
from hydractl.publish import is_stream, publish_text
from hydractl.scoring.job import NOTHING_LEARNT, Memory

MEMORY = "memory"
_MEMORY: TypeAdapter[dict[str, tuple[float, ...]]] = TypeAdapter(dict[str, tuple[float, ...]])


@dataclass(kw_only=True)
class Journal:
    """Removals on disk, each there before the next begins.

    Attributes:
        path: None where nothing is written: for a stream, and in a process that does not lead.
        fingerprint: Of everything that shapes the output.
        baseline: The objective before the first removal.
        done: What an earlier run removed.
        memory: What its search remembered then.
    """

    path: Path | None = None
    fingerprint: str
    baseline: float | None = None
    done: tuple[Removal, ...] = ()
    memory: Memory = field(default_factory=lambda: NOTHING_LEARNT)

    @classmethod
    def parsed(cls, text: str, path: Path | None = None) -> Self:
        """Return what a journal says; a last line without its newline does not count.

        Raises:
            ValueError: If it is none.
        """
        first, *documents = [parse(line) for line in text.split("\n")[:-1]] or [{}]
        if not all(isinstance(document, dict) for document in (first, *documents)):
            raise ValueError("a line is no object")
        memories = [_MEMORY.validate_python(document.pop(MEMORY, {})) for document in documents]
        return cls(
            path=path,
            fingerprint=str(first.get("fingerprint")),
            baseline=first.get("baseline"),
            done=tuple(Removal.model_validate(document) for document in documents),
            memory=memories[-1] if memories else NOTHING_LEARNT,
        )

    def text(self) -> str:
        """Return what the journal says, whole lines."""
        first = json.dumps({"fingerprint": self.fingerprint, "baseline": self.baseline})
        lines = [_line(r, NOTHING_LEARNT) for r in self.done[:-1]] + [
            _line(r, self.memory) for r in self.done[-1:]
        ]
        return "".join(f"{line}\n" for line in (first, *lines))

    def begin(self, baseline: float) -> None:
        """Write the first line of a new journal, or cut an old one back to its whole lines."""
        self.baseline = baseline
        if self.path is not None:
            publish_text(self.path, self.text())

    def record(self, removal: Removal, memory: Memory = NOTHING_LEARNT) -> None:
        """Add one removal, and what the search remembers after it."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(removal, memory) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Remove the journal: its output is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _line(removal: Removal, memory: Memory) -> str:
    document = removal.model_dump()
    return json.dumps({**document, MEMORY: dict(memory)}) if memory else removal.model_dump_json()


def open_journal(out: Path, fingerprint: str, *, anew: bool, team: Team) -> Journal:
    """Open the journal of an output, `<out>.journal`; a stream has none.

    The process that leads opens it; the others are told what it holds, and write none.

    Args:
        out: The output that is being made.
        fingerprint: Of everything that shapes it.
        anew: Drop what an earlier run left.
        team: The processes.

    Raises:
        ManifestError: If another run's journal is there, or a damaged one.
    """
    if not team.leads:
        return Journal.parsed(team.told(""))
    journal = _opened(out, fingerprint, anew=anew)
    team.told(journal.text())
    return journal


def _opened(out: Path, fingerprint: str, *, anew: bool) -> Journal:
    if is_stream(out):
        return Journal(fingerprint=fingerprint)
    path = out.with_name(f"{out.name}.journal")
    if anew:
        path.unlink(missing_ok=True)
    if not path.exists():
        return Journal(path=path, fingerprint=fingerprint)
    try:
        found = Journal.parsed(path.read_text(encoding="utf-8"), path)
    except ValueError as error:
        raise ManifestError(f"{path}: is damaged", hint="add `--force` to drop it and start anew") from error
    if found.fingerprint != fingerprint:
        raise ManifestError(
            f"{path}: belongs to a run with other inputs or options",
            hint="add `--force` to drop it and start anew, or choose another name with `-o`",
        )
    return found
