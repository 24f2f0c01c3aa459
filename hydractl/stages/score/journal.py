"""A journal beside an output: what an interrupted greedy run has done so far, one JSON line a removal.

The first line fingerprints the run. A removal's line also holds what the search remembers then; the last one's counts. A line that was cut off by a kill is dropped; everything before it counts.
Of several processes one writes.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import TypeAdapter, ValidationError

from hydractl.errors import ManifestError
from hydractl.manifest import Removal
from hydractl.publish import is_stream, publish_text
from hydractl.scoring.job import NOTHING_LEARNT

if TYPE_CHECKING:
    from pathlib import Path

    from hydractl.parallel import Team
    from hydractl.scoring.job import Memory

MEMORY = "memory"
_MEMORY: TypeAdapter[dict[str, tuple[float, ...]]] = TypeAdapter(dict[str, tuple[float, ...]])


class _Found(NamedTuple):
    """What a journal says."""

    fingerprint: str = ""
    baseline: float | None = None
    done: tuple[Removal, ...] = ()
    memory: Memory = NOTHING_LEARNT


class Journal:
    """Removals on disk, each there before the next begins."""

    def __init__(self, path: Path | None, found: _Found) -> None:
        self.path = path
        self.fingerprint, self.baseline, self.done, self.memory = found

    @classmethod
    def open(cls, out: Path, fingerprint: str, *, anew: bool) -> Self:
        """Open the journal of an output, `<out>.journal`; a stream has none.

        Args:
            out: The output that is being made.
            fingerprint: Of everything that shapes it.
            anew: Drop what an earlier run left.

        Raises:
            ManifestError: If another run's journal is there.
        """
        if is_stream(out):
            return cls(None, _Found(fingerprint))
        path = out.with_name(f"{out.name}.journal")
        if anew:
            path.unlink(missing_ok=True)
        if not path.exists():
            return cls(path, _Found(fingerprint))
        found = _read(path)
        if found.fingerprint != fingerprint:
            raise ManifestError(
                f"{path}: belongs to a run with other inputs or options",
                hint="add `--force` to drop it and start anew, or choose another name with `-o`",
            )
        return cls(path, found)

    @classmethod
    def following(cls, text: str) -> Self:
        """Return what another process's journal holds, as its `text` says; it writes nothing."""
        return cls(None, _parsed(text))

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
    """Open an output's journal in the process that leads; the others are told what it holds, and write none.

    Arguments and errors are those of `Journal.open`.
    """
    if not team.leads:
        return Journal.following(team.told(""))
    journal = Journal.open(out, fingerprint, anew=anew)
    team.told(journal.text())
    return journal


def _read(path: Path) -> _Found:
    """Return what a journal says."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (ValueError, ValidationError, AttributeError) as error:
        raise ManifestError(f"{path}: is damaged", hint="add `--force` to drop it and start anew") from error


def _parsed(text: str) -> _Found:
    """Return what a journal says; a last line without its newline does not count."""
    lines = text.split("\n")[:-1]
    first = json.loads(lines[0]) if lines else {}
    documents = [json.loads(line) for line in lines[1:]]
    memories = [_MEMORY.validate_python(d.pop(MEMORY, {})) for d in documents]
    done = tuple(Removal.model_validate_json(json.dumps(d)) for d in documents)
    return _Found(
        str(first.get("fingerprint")),
        first.get("baseline"),
        done,
        memories[-1] if memories else NOTHING_LEARNT,
    )
