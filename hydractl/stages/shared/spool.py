"""Where what members say of a data set is kept until it has been looked at: in memory while it is small, else on the disk.

On the disk it is float32, as models' answers are, in a file without a name, which goes when nobody holds it any more, however
the process ends.
"""

from __future__ import annotations

import shutil
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
from hydractl.metrics.samples import Joined, Kept, Responses

HELD_BYTES = 32 << 20
"""How much of one data set stays in memory."""
ITEM_BYTES = 4
HINT = "set TMPDIR to a folder on a disk with room, or write the outputs there"


class Spool:
    """What members say of the N samples of a data set, as it comes: in any order."""

    def __init__(self, count: int, folder: Path | None = None) -> None:
        """Wait for the first of it, which tells how much there will be.

        Args:
            count: N.
            folder: Where a file may be made; None for where temporary ones are.
        """
        self._count = count
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._file: BufferedRandom | None = None
        self._held = torch.empty(0)
        self._logsumexp = torch.empty(0)
        self._done = 0

    def put(self, indices: Tensor, said: Responses) -> None:
        """Keep what is said of the samples at some places.

        Raises:
            OutputError: If there is no room for it.
        """
        if said.logsumexp is None:
            raise ValueError("the logits are kept too")
        members, _, classes = said.shape
        if not self._done:
            self._begin(members, classes)
        self._done += len(indices)
        self._logsumexp[:, indices] = said.logsumexp
        if self._file is None:
            self._held[:, indices] = said.log_probs
            return
        ends = (indices.diff() != 1).nonzero().flatten().add(1).tolist()
        with self._translated():
            for begin, end in zip([0, *ends], [*ends, len(indices)], strict=True):
                for m in range(members):
                    self._file.seek(self._offset(m, int(indices[begin])))
                    self._file.write(said.log_probs[m, begin:end].contiguous().numpy().data)

    def kept(self) -> Kept:
        """Return all of it.

        Raises:
            ValueError: If not as many samples have come as there are.
        """
        if self._done != self._count:
            raise ValueError(f"{self._done} of {self._count} items came")
        if self._file is None:
            return Responses(self._held, self._logsumexp)
        return Joined(tuple(Filed(self, m) for m in range(self.shape[0])))

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and C."""
        members, samples, classes = self._held.shape
        return members, samples, classes

    def read(self, member: int, begin: int, samples: int) -> Responses:
        """Return what a member says of so many samples, or those that are left, from one on; it lies in a file."""
        own = self._logsumexp[member : member + 1, begin : begin + samples]
        part = torch.empty(*own.shape, self.shape[2])
        if self._file is not None:
            self._file.seek(self._offset(member, begin))
            if self._file.readinto(part.numpy().data.cast("B")) != part.nbytes:
                raise OSError("a file of predictions ends early")
        return Responses(part, own)

    def _offset(self, member: int, sample: int) -> int:
        _, samples, classes = self.shape
        return ITEM_BYTES * classes * (member * samples + sample)

    def _begin(self, members: int, classes: int) -> None:
        size = ITEM_BYTES * members * self._count * classes
        shape, on_disk = (members, self._count, classes), size > HELD_BYTES
        self._held = torch.empty(shape, device="meta" if on_disk else "cpu")
        self._logsumexp = torch.empty(shape[:2])
        if not on_disk:
            return
        with self._translated():
            free = shutil.disk_usage(self._folder).free
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed as follows
        weakref.finalize(self, self._file.close)
        if free < size:
            raise OutputError(
                f"{self._folder}: the predictions on {self._count} samples take {size / 1e9:.1f} GB until they are measured, and "
                f"{free / 1e9:.1f} GB are free",
                hint=HINT,
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._folder}: predictions cannot be kept there until they are measured: {error.strerror}",
                hint=HINT,
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Filed:
    """What one of several members says, as it lies in a file; the spool is held, with which that goes."""

    spool: Spool
    member: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """M = 1, N and C."""
        return 1, *self.spool.shape[1:]

    def members(self) -> Iterator[Kept]:
        """Yield itself."""
        yield self

    def split(self, samples: int) -> Iterator[Responses]:
        """Yield it with at most so many samples at a time, in order."""
        for begin in range(0, self.shape[1], samples):
            yield self.spool.read(self.member, begin, samples)
