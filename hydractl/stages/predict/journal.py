"""A journal beside an output: the lines that are done, in blocks, each whole before the next begins.

The first line fingerprints the run. A block is its lines and one more, which holds a digest of what was read for them and a
digest of itself and of all before it. A block that was cut off by a kill is dropped; everything before it counts. Of several
processes one writes. A file whose first line is not of this kind is not ours, and never touched. The output is made of the
journal at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from hydractl.data.datasets import ImageSet, Items
from hydractl.data.sources.stream import ItemStream, parts_of
from hydractl.errors import ManifestError
from hydractl.output.atomic_write import append
from hydractl.progress import Progress
from hydractl.stages.predict.writers import Line, text
from hydractl.stages.shared.outputs import LONGEST, first_line
from hydractl.strict_json import compact, parse
from hydractl.training.resume import DROPPED, OtherRunError
from hydractl.training.run_settings import changes, stored_texts

SCHEMA = "hydractl.predictions-journal/1"
AT_ONCE = 1024
"""Lines in memory at once when the output is written."""


@dataclass(kw_only=True)
class PredictJournal:
    """Lines on disk.

    Attributes:
        path: Where.
        fingerprint: Of everything that shapes a line but the inputs.
        settings: What of that a refusal may name, as `texts_of` has it.
        blocks: Of an earlier run, how many lines each whole block has, and the digest of what was read for them.
        size: Bytes of the whole blocks and the first line; 0 where nothing is written yet.
        chain: The last block's digest.
        stored_fingerprint: The fingerprint that is there.
        head_size: Bytes of the first line.
        has_written: Whether this run has written to it.
    """

    path: Path
    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)
    blocks: list[tuple[int, str]]
    size: int = 0
    chain: str = ""
    stored_fingerprint: str = ""
    head_size: int = 0
    has_written: bool = False

    def read(self) -> None:
        """Take note of the whole blocks that are there.

        Raises:
            ValueError: If one does not follow from what is before it.
        """
        with self.path.open("rb") as file:
            for count, block, end in _blocks(file):
                inputs = str(end.get("inputs"))
                self.chain = _link(self.chain, inputs, b"".join(block))
                if end.get("chain") != self.chain:
                    raise ValueError("the digest of a block does not match")
                self.blocks.append((count, inputs))
                self.size = file.tell()

    def _begin(self) -> None:
        """Write the first line, and cut off what is no whole block."""
        identity_of_run = {"schema": SCHEMA, "fingerprint": self.fingerprint}
        head = compact({**identity_of_run, "settings": dict(self.settings)}).encode()
        if not self.size:
            self.path.write_bytes(head + b"\n")
            self.size = len(head) + 1
        elif self.stored_fingerprint != self.fingerprint:
            head = head if len(head) < self.head_size else compact(identity_of_run).encode()
            with self.path.open("r+b") as file:
                file.write(head.ljust(self.head_size - 1))  # as long as the one that is there
        os.truncate(self.path, self.size)

    def check(self, sets: Iterable[Items | ItemStream]) -> list[int]:
        """Return how many items of each set are done; refuse lines that were made of other inputs.

        Args:
            sets: What the run reads. Of a stream those that are done are read again.

        Raises:
            OtherRunError: If some were.
        """
        waiting, completed = deque(self.blocks), list[int]()
        for items in sets:
            completed.append(0)
            for part in parts_of(items, [count for count, _ in waiting]):
                count, inputs = waiting.popleft()
                if len(part) != count or identity(part, range(count)) != inputs:
                    first = sum(completed) + 1
                    raise OtherRunError(self.path, f"inputs {first} to {first + count - 1} have changed")
                completed[-1] += count
        if waiting:
            count = sum(completed)
            raise OtherRunError(self.path, f"there are now only {count} inputs, fewer than before")
        return completed

    def record(self, lines: Sequence[Line], items: Items, places: Sequence[int]) -> None:
        """Add a block. The first one makes the file: one without an answer would be of no use, and in another run's way.

        Args:
            lines: One an input.
            items: Where these are from.
            places: Which of them they are.
        """
        if not self.has_written:
            self._begin()
            self.has_written = True
        inputs = identity(items, places)
        block = "".join(f"{text(line)}\n" for line in lines)
        self.chain = _link(self.chain, inputs, block.encode())
        end = compact({"lines": len(lines), "inputs": inputs, "chain": self.chain})
        append(self.path, f"{block}{end}\n".encode())

    def replay(self) -> Iterator[list[Line]]:
        """Yield all lines, some at a time."""
        with self.path.open("rb") as file:
            lines: list[Line] = []
            for count, block, _ in _blocks(file):
                lines += map(json.loads, block[:count])  # with halves of surrogate pairs, in names of files
                if len(lines) >= AT_ONCE:
                    yield lines
                    lines = []
            yield lines

    def discard(self) -> None:
        """Remove it: its output is there, or it is of no use."""
        self.path.unlink(missing_ok=True)


def identity(items: Items, places: Sequence[int]) -> str:
    """Return a digest that tells what was read for some items: of files names, sizes and times of change, else the content."""
    sha = sha256()
    for i in places:
        key = items.key(i)
        if isinstance(items, ImageSet) and isinstance(key, str):
            with contextlib.suppress(OSError):
                stat = os.stat(key)  # noqa: PTH116 - as elsewhere, a path may be too long
                key = f"{key}\0{stat.st_size}\0{stat.st_mtime_ns}"
            sha.update(os.fsencode(f"{key}\n"))
        else:
            sha.update(items.item_digest(i))
    return sha.hexdigest()


def open_journal(
    out: Path,
    fingerprint: str,
    settings: Mapping[str, str],
    *,
    subsumed: str,
    anew: str | None,
    progress: Progress,
) -> PredictJournal:
    """Open the journal of an output, `<out>.journal`.

    Args:
        out: The output that is being made.
        fingerprint: Of everything that shapes it but the inputs.
        settings: What of that a refusal may name, as `texts_of` has it.
        subsumed: Of another run whose lines would be lines of this one; the journal becomes this run's with the next block.
        anew: Why what an earlier run left is dropped; None keeps it.
        progress: Hears of it.

    Raises:
        OutputExists: If another run's journal is there, or something that is not ours.
        ManifestError: If a damaged one is.
    """
    path = out.with_name(f"{out.name}.journal")
    journal = PredictJournal(path=path, fingerprint=fingerprint, settings=settings, blocks=[])
    if not os.path.lexists(path):
        return journal
    first, size = first_line(path, SCHEMA)
    if anew is not None:
        progress.warn(DROPPED.format(why=anew, where=path))
        return journal
    if first.get("fingerprint") not in {fingerprint, subsumed}:
        raise OtherRunError(path, changes(stored_texts(first.get("settings")), settings))
    journal.stored_fingerprint, journal.head_size, journal.size = first["fingerprint"], size, size
    try:
        journal.read()
    except ValueError as error:
        raise ManifestError(
            f"{path}: is damaged: {error}", hint="add `--force` to discard it and start again"
        ) from error
    return journal


def _blocks(file: BinaryIO) -> Iterator[tuple[int, list[bytes], Line]]:
    """Yield how many lines a block has, them, and its last line's object; the file is then where the block ends.

    Raises:
        ValueError: If a line is no object.
    """
    file.readline(LONGEST)
    block: list[bytes] = []
    while (line := file.readline(LONGEST)).endswith(b"\n"):
        if not line.startswith(b'{"lines":'):
            block.append(line)
            continue
        end = parse(line)
        if not isinstance(end, dict) or end.get("lines") != len(block):
            raise ValueError("the number of lines of a block does not match")
        yield len(block), block, end
        block = []


def _link(before: str, inputs: str, block: bytes) -> str:
    return sha256(f"{before}\n{inputs}\n".encode() + block).hexdigest()
