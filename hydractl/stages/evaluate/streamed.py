"""Data sets of `eval` that are streams: gone over once for each row, and seen to be the same each time.

Memory holds the rows of one part, and of every row two numbers and its label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import torch
from typing_extensions import override

from hydractl.data.batches import Batch, Deal
from hydractl.data.columns import LabelReader
from hydractl.data.inputs import Reading
from hydractl.data.items import Items, Labels, fingerprint_of
from hydractl.data.stream import BATCHES, Stream
from hydractl.errors import DataError
from hydractl.inputs import Inputs
from hydractl.manifest.document import Fingerprint
from hydractl.parallel import Team
from hydractl.progress import Progress, counted
from hydractl.stages.evaluate.doubts import DIGEST
from hydractl.stages.shared.predictions import PreparedData

HINT = "add `limit=N`: the first N rows are read once and kept; or leave `streaming` out"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passed:
    """What is known of a stream once it has passed; name and classes as of `Items`.

    Attributes:
        fingerprint: As that of the same rows in a file.
        content: What tells its items, as `DIGEST`.
        marks: What tells its rows, items and labels, as `DIGEST`.
    """

    name: str
    class_names: tuple[str, ...]
    labels: tuple[int, ...] | None
    numbered: bool
    fingerprint: Fingerprint
    content: np.ndarray
    marks: np.ndarray


class _Seen:
    """What has passed so far."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.reader = stream.reader()
        self.digests = bytearray()
        self.marks = bytearray()
        self.chain = hashlib.sha256()

    def __len__(self) -> int:
        return len(self.marks) // DIGEST.itemsize

    def add(self, digests: Sequence[bytes], marks: bytes, cells: Sequence[object]) -> None:
        for digest in digests:
            self.digests += digest
        self.marks += marks
        self.chain.update(marks)
        if self.reader is not None:
            self.reader.add(cells)

    def passed(self, progress: Progress) -> Passed:
        labels = Labels() if self.reader is None else self.reader.labels(progress)
        size = len(self.digests) // len(self)
        each = (bytes(self.digests[at : at + size]) for at in range(0, len(self.digests), size))
        name = self.stream.name
        return Passed(
            name=name,
            **labels._asdict(),
            fingerprint=Fingerprint(
                reference=name,
                sha256=fingerprint_of(len(self), labels.class_names, labels.labels, each),
                count=len(self),
            ),
            content=np.frombuffer(self.digests, np.uint8)
            .reshape(len(self), size)[:, : DIGEST.itemsize]
            .copy()
            .view(DIGEST)
            .ravel(),
            marks=np.frombuffer(self.marks, DIGEST),
        )


class _Part(PreparedData):
    """Some rows of a stream, which has a bar of its own."""

    @override
    def tracked(self, preprocess: Reading, name: str, progress: Progress) -> Iterable[Batch[Inputs]]:
        return self.batches(preprocess)


@dataclass(kw_only=True, eq=False)
class StreamedData:
    """A stream as model inputs, some batches at a time.

    Attributes:
        stream: The rows.
        name: What messages call the set.
        batch_size: At least 1.
        limit_bytes: How much memory decoded images of one part may take.
        team: The processes, each of which reads the stream and has its batches.
        progress: Sees it pass.
        check: Refuses labels that will not do whatever comes after them; None does not look.
        passed: What is known of it, once it has passed.
    """

    stream: Stream
    name: str
    batch_size: int
    limit_bytes: int
    team: Team
    progress: Progress
    check: Callable[[LabelReader], None] | None = None
    passed: Passed | None = field(default=None, init=False)

    @property
    def count(self) -> int | None:
        """How many rows there are; None before they have passed."""
        return None if self.passed is None else len(self.passed.marks)

    def __len__(self) -> int:
        return len(self.known.marks)

    @property
    def known(self) -> Passed:
        """What is known of it, which has passed."""
        if self.passed is None:
            raise ValueError(f"{self.name} has not passed yet")
        return self.passed

    def parts(self) -> Iterator[tuple[int, PreparedData]]:
        """Yield the place of each part's first row, and it: `BATCHES` batches; to the end.

        Raises:
            HubError: If the stream breaks off.
            DataError: If a row or its label cannot be read, or rows are not the same as before, or in another process.
        """
        per = self.batch_size * BATCHES
        total = None if self.passed is None else -(-len(self) // per)
        label = f"{self.name}, {per} rows at a time"
        return iter(self.progress.track(self._parts(per), label=label, total=total))

    def tracked(self, preprocess: Reading, name: str, progress: Progress) -> Iterable[Batch[Inputs]]:  # noqa: ARG002 - as `PreparedData` has it
        """Yield this process's batches of rows that have passed before; as `PreparedData.tracked`."""
        for begin, part in self.parts():
            for batch in part.batches(preprocess):
                yield batch._replace(indices=batch.indices + begin)

    def _parts(self, per: int) -> Iterator[tuple[int, PreparedData]]:
        seen, begin = _Seen(self.stream), 0
        for items, cells in self.stream.labelled(repeat(per)):
            digests = [items.item_digest(i) for i in range(len(items))]
            marks = _marks(digests, cells)
            if self.passed is None:
                seen.add(digests, marks, cells)
                self._agree(seen)
                if self.check is not None and seen.reader is not None:
                    self.check(seen.reader)
            else:
                self._check_same(begin, marks)
            yield begin, self._part(begin, items)
            begin += len(items)
        if self.passed is None:
            self._agree(seen)
            self.passed = seen.passed(self.progress)
        elif begin < len(self):
            raise DataError(
                f"{self.stream.name}: ends after {counted(begin, 'row')} and had {len(self)} when it was first read",
                hint=HINT,
            )

    def _part(self, begin: int, items: Items) -> PreparedData:
        which = (self.team.rank - begin // self.batch_size) % self.team.world
        return _Part(
            items,
            batch_size=self.batch_size,
            limit_bytes=self.limit_bytes,
            name=self.name,
            deal=Deal(which, self.team.world, among=BATCHES),
        )

    def _check_same(self, begin: int, marks: bytes) -> None:
        """Refuse rows that are not those that were measured before."""
        found = np.frombuffer(marks, DIGEST)
        wanted = self.known.marks[begin : begin + len(found)]
        differ = np.flatnonzero(found[: len(wanted)] != wanted)
        if len(differ):
            raise DataError(
                f"{self.stream.name}: row {begin + int(differ[0])} is not what it was when the stream was first read",
                hint=HINT,
            )
        if len(wanted) < len(found):
            raise DataError(
                f"{self.stream.name}: goes on after row {len(self) - 1}, where it ended when it was first read",
                hint=HINT,
            )

    def _agree(self, seen: _Seen) -> None:
        """Refuse to answer about rows together that are not the same in all processes."""
        if self.team.world == 1:
            return
        own = torch.tensor([*seen.chain.digest()], dtype=torch.uint8)
        found = self.team.in_order([own])
        if any(not torch.equal(each, found[0]) for each in found):
            raise DataError(
                f"{self.stream.name}: the processes of this run read other rows, though all read one stream",
                hint=HINT,
            )


def _marks(digests: Sequence[bytes], cells: Sequence[object]) -> bytes:
    """Return what tells rows by their items and labels, as `DIGEST`."""
    each = cells or repeat(None)
    made = (
        hashlib.sha256(digest + repr(cell).encode()).digest()
        for digest, cell in zip(digests, each, strict=False)
    )
    return b"".join(mark[: DIGEST.itemsize] for mark in made)
