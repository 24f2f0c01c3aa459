"""Where what members say of a data set is kept until it has been looked at: in memory while it is small, else on the disk.

On the disk it is float32, as models' answers are, in a file without a name, which goes when nobody holds it any more, however
the process ends.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import torch
from torch import Tensor

from hydractl.errors import OutputError
from hydractl.metrics.per_sample import Joined, Responses, StoredPredictions
from hydractl.output.scratch import HELD_BYTES, ROOM_HINT, check_room

ITEM_BYTES = 4
HINT = f"{ROOM_HINT}, or write the outputs there"


BLOCK = 4096
"""Samples of one member per block of a file whose total number is unknown."""


class Filled:
    """A tensor (A, N, ...) that is filled at places along N; where nobody knows N it grows as need be."""

    def __init__(self, count: int | None) -> None:
        """Wait for the first of it, which tells the other sizes; N is `count`."""
        self._count = count
        self._end = 0
        self._whole: Tensor | None = None

    def store(self, indices: Tensor, part: Tensor) -> None:
        """Keep what belongs at some places (B,): a part (A, B, ...)."""
        self._end = max(self._end, int(indices.max()) + 1)
        had = 0 if self._whole is None else self._whole.shape[1]
        if self._whole is None or self._end > had:
            size = max(self._end, 2 * had) if self._count is None else self._count
            grown = part.new_empty(len(part), size, *part.shape[2:])
            if self._whole is not None:
                grown[:, :had] = self._whole
            self._whole = grown
        self._whole[:, indices] = part

    def all(self) -> Tensor:
        """Return it, as if N had been known."""
        if self._whole is None:
            raise ValueError("no items were read")
        if self._count is None:
            self._whole = self._whole[:, : self._end].contiguous()
        return self._whole


class PredictionStore:
    """What members say of the N samples of a data set, as it comes: in any order."""

    def __init__(self, count: int | None, folder: Path | None = None) -> None:
        """Wait for the first of it, which tells how much there will be.

        Args:
            count: N; None where nobody knows.
            folder: Where a file may be made; None for where temporary ones are.
        """
        self._count = count
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._file: BufferedRandom | None = None
        self._held = Filled(count)
        self._logsumexp = Filled(count)
        self._members = self._samples = self._done = 0
        self._answer: tuple[int, ...] = ()  # axes of what is said of a sample: C, or Q and 2 of Q labels

    def store(self, indices: Tensor, responses: Responses) -> None:
        """Keep what is said of the samples at some places.

        Raises:
            OutputError: If there is no room for it.
        """
        if responses.logsumexp is None:
            raise ValueError("logits are stored too")
        before = self._samples
        self._members, _, *answer = responses.shape
        self._answer = tuple(answer)
        self._samples = max(before, int(indices.max()) + 1) if self._count is None else self._count
        self._done += len(indices)
        self._logsumexp.store(indices, responses.logsumexp)
        size = ITEM_BYTES * self._members * self._samples * math.prod(self._answer)
        if self._file is None and size > HELD_BYTES:
            self._file = self._open_file(size)
            if before:
                self._write(self._file, torch.arange(before), self._held.all())
            self._held = Filled(0)
        if self._file is None:
            self._held.store(indices, responses.log_probs)
        else:
            self._write(self._file, indices, responses.log_probs)

    def stored(self) -> StoredPredictions:
        """Return all of it.

        Raises:
            ValueError: If not as many samples have come as there are.
        """
        count = self._samples if self._count is None else self._count
        if self._done != count:
            raise ValueError(f"{self._done} of {count} items were read")
        if self._file is None:
            return Responses(self._held.all(), self._logsumexp.all())
        return Joined(tuple(StoredMember(self, m) for m in range(self._members)))

    @property
    def shape(self) -> tuple[int, ...]:
        """As of `StoredPredictions`."""
        return self._members, self._samples, *self._answer

    def read(self, member: int, begin: int, samples: int) -> Responses:
        """Return what a member says of so many samples, or those that are left, from one on; it lies in a file."""
        logsumexp = self._logsumexp.all()[member : member + 1, begin : begin + samples]
        part = torch.empty(*logsumexp.shape, self._answer[-1])
        if self._file is not None:
            for places in self._runs(torch.arange(begin, begin + logsumexp.shape[1])):
                into = part[:, places.start : places.stop]
                self._file.seek(self._offset(member, begin + places.start))
                if self._file.readinto(into.numpy().data.cast("B")) != into.nbytes:
                    raise OSError("a file of predictions is truncated")
        return Responses(part, logsumexp)

    def _write(self, file: BufferedRandom, indices: Tensor, log_probs: Tensor) -> None:
        with self._translated():
            for places in self._runs(indices):
                for m in range(self._members):
                    file.seek(self._offset(m, int(indices[places.start])))
                    file.write(log_probs[m, places.start : places.stop].contiguous().numpy().data)

    def _runs(self, indices: Tensor) -> Iterator[range]:
        """Yield which of some samples lie side by side in the file."""
        run_ends = (indices.diff() != 1) | (indices[1:] % self._block == 0)
        ends = run_ends.nonzero().flatten().add(1).tolist()
        for begin, end in zip([0, *ends], [*ends, len(indices)], strict=True):
            yield range(begin, end)

    @property
    def _block(self) -> int:
        return BLOCK if self._count is None else self._count

    def _offset(self, member: int, sample: int) -> int:
        block, place = divmod(sample, self._block)
        return ITEM_BYTES * math.prod(self._answer) * ((block * self._members + member) * self._block + place)

    def _open_file(self, size: int) -> BufferedRandom:
        with self._translated():
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed as follows
        weakref.finalize(self, file.close)
        name = f"the predictions on {self._samples} samples"
        check_room(self._folder, size, name=name, until="they are measured", hint=HINT)
        return file

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._folder}: cannot store predictions temporarily: {error.strerror}",
                hint=HINT,
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class StoredMember:
    """What one of several members says, as it lies in a file; the spool is held, with which that goes."""

    spool: PredictionStore
    member: int

    @property
    def shape(self) -> tuple[int, ...]:
        """As of `StoredPredictions`, M = 1."""
        return 1, *self.spool.shape[1:]

    def members(self) -> Iterator[StoredPredictions]:
        """Yield itself."""
        yield self

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield it with at most so many samples at a time, in order."""
        for begin in range(0, self.shape[1], samples):
            yield self.spool.read(self.member, begin, samples)
