"""A journal beside an output: what an interrupted greedy run has done so far, one JSON line a removal.

The first line fingerprints the run. A line that was cut off by a kill is dropped; everything before it counts.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from hydractl.errors import ManifestError
from hydractl.manifest import Removal
from hydractl.publish import is_stream, publish_text

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Removals on disk, each there before the next begins."""

    def __init__(
        self, path: Path | None, fingerprint: str, done: tuple[Removal, ...], baseline: float | None
    ) -> None:
        self.path = path
        self.fingerprint = fingerprint
        self.done = done
        self.baseline = baseline

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
            return cls(None, fingerprint, (), None)
        path = out.with_name(f"{out.name}.journal")
        if anew:
            path.unlink(missing_ok=True)
        if not path.exists():
            return cls(path, fingerprint, (), None)
        found, baseline, done = _read(path)
        if found != fingerprint:
            raise ManifestError(
                f"{path}: belongs to a run with other inputs or options",
                hint="add `--force` to drop it and start anew, or choose another name with `-o`",
            )
        return cls(path, fingerprint, done, baseline)

    def begin(self, baseline: float) -> None:
        """Write the first line of a new journal, or cut an old one back to its whole lines."""
        self.baseline = baseline
        if self.path is not None:
            first = json.dumps({"fingerprint": self.fingerprint, "baseline": baseline})
            publish_text(
                self.path, "".join(f"{line}\n" for line in (first, *(r.model_dump_json() for r in self.done)))
            )

    def record(self, removal: Removal) -> None:
        """Add one removal."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(removal.model_dump_json() + "\n")
                file.flush()
                os.fsync(file.fileno())

    def discard(self) -> None:
        """Remove the journal: its output is there."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[str, float | None, tuple[Removal, ...]]:
    """Return fingerprint, baseline and removals; a last line without its newline does not count."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        first = json.loads(lines[0]) if lines else {}
        done = tuple(Removal.model_validate_json(line) for line in lines[1:])
        return str(first.get("fingerprint")), first.get("baseline"), done
    except (ValueError, ValidationError, AttributeError) as error:
        raise ManifestError(f"{path}: is damaged", hint="add `--force` to drop it and start anew") from error
