"""Data sets of `eval` that are streams: gone over once for each row, and seen to be the same each time.

Memory holds the rows of one part, and of every row a digest and its label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, Self

import numpy as np
import torch
from typing_extensions import override

from hydractl.data.batches import Batch, BatchShare
from hydractl.data.datasets import Items
from hydractl.data.encode import Reading
from hydractl.data.reference import ENDLESS_HINT
from hydractl.data.sources.column_roles import LabelReader
from hydractl.data.sources.stream import (
    BATCHES,
    ItemStream,
    StreamDigest,
    StreamDigestBuilder,
    digests_of,
    marks_of,
)
from hydractl.errors import DataError
from hydractl.manifest.document import Fingerprint, pack
from hydractl.manifest.header import SampledFile
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.shared.open_inputs import digests, identified
from hydractl.stages.shared.predictions import PreparedData


class Identity(NamedTuple):
    """What tells a set from others, and what tells its items, as `DIGEST`."""

    fingerprint: Fingerprint
    content: np.ndarray

    @classmethod
    def of(cls, items: Items, team: ProcessGroup) -> Self:
        """Read a set, of which each process reads its share."""
        sha256, content = identified(items, digests(items, team))
        return cls(Fingerprint(reference=items.name, sha256=sha256, count=items.total), content)

    def as_input(self) -> SampledFile:
        """Return the set's lineage entry."""
        reference, sha256 = self.fingerprint.reference, self.fingerprint.sha256
        return SampledFile(name=reference, sha256=sha256, samples=pack(self.content))


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
        stream_digest: What is known of it, once it has passed.
    """

    stream: ItemStream
    name: str
    batch_size: int
    limit_bytes: int
    team: ProcessGroup
    progress: Progress
    check: Callable[[LabelReader], None] | None = None
    stream_digest: StreamDigest | None = field(default=None, init=False)

    @property
    def count(self) -> int | None:
        """How many rows there are; None before they have passed."""
        return None if self.stream_digest is None else len(self.stream_digest)

    def __len__(self) -> int:
        return len(self.digest)

    @property
    def identity(self) -> Identity:
        """What tells it from others, once it has passed."""
        digest = self.digest
        fingerprint = Fingerprint(reference=self.stream.name, sha256=digest.sha256, count=len(digest))
        return Identity(fingerprint, digest.content)

    @property
    def digest(self) -> StreamDigest:
        """What is known of it, which has passed."""
        if self.stream_digest is None:
            raise ValueError(f"{self.name} has not been read yet")
        return self.stream_digest

    def parts(self) -> Iterator[tuple[int, PreparedData]]:
        """Yield the place of each part's first row, and it: `BATCHES` batches; to the end.

        Raises:
            HubError: If the stream breaks off.
            DataError: If a row or its label cannot be read, or rows are not the same as before, or in another process.
        """
        per = self.batch_size * BATCHES
        total = None if self.stream_digest is None else -(-len(self) // per)
        label = f"{self.name}, in chunks of {per} rows"
        return iter(self.progress.track(self._parts(per), label=label, total=total))

    def tracked(self, preprocess: Reading, name: str, progress: Progress) -> Iterable[Batch[Inputs]]:  # noqa: ARG002 - as `PreparedData` has it
        """Yield this process's batches of rows that have passed before; as `PreparedData.tracked`."""
        for begin, part in self.parts():
            for batch in part.batches(preprocess):
                yield batch._replace(indices=batch.indices + begin)

    def _parts(self, per: int) -> Iterator[tuple[int, PreparedData]]:
        reading, begin = StreamDigestBuilder(self.stream), 0
        for items, cells in self.stream.labelled(repeat(per)):
            digests_read = digests_of(items)
            marks = marks_of(digests_read, cells)
            if self.stream_digest is None:
                reading.add(digests_read, marks, cells)
                self._check_same_in_all(reading)
                if self.check is not None and reading.reader is not None:
                    self.check(reading.reader)
            else:
                self.stream_digest.check_same(begin, marks)
            yield begin, self._part(begin, items)
            begin += len(items)
        if self.stream_digest is None:
            self._check_same_in_all(reading)
            self.stream_digest = reading.finish(self.progress)
        self.stream_digest.check_whole(begin)

    def _part(self, begin: int, items: Items) -> PreparedData:
        share = (self.team.rank - begin // self.batch_size) % self.team.world
        return _Part(
            items,
            batch_size=self.batch_size,
            limit_bytes=self.limit_bytes,
            name=self.name,
            deal=BatchShare(share, self.team.world, among=BATCHES),
        )

    def _check_same_in_all(self, reading: StreamDigestBuilder) -> None:
        """Refuse to answer about rows together that are not the same in all processes."""
        if self.team.world == 1:
            return
        digest = torch.tensor([*reading.chain.digest()], dtype=torch.uint8)
        first, *others = self.team.in_order([digest])
        if not all(torch.equal(other_identity, first) for other_identity in others):
            raise DataError(
                f"{self.stream.name}: the processes of this run read different rows of the same stream",
                hint=ENDLESS_HINT,
            )
