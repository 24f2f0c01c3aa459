"""Temporary tensors, stored in an unnamed file if they are large."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch

from hydractl.errors import OutputError

HELD_BYTES = 32 << 20
"""Maximum size of a tensor in memory, in bytes. Larger tensors are stored in a file. Chosen by hand; doubling
it doubles the memory of each scratch tensor."""
ROOM_HINT = "set TMPDIR to a folder on a disk with more space"


class ScratchFile:
    """Float32 tensor in an unnamed file.

    The disk space is freed with the last reference to the object and its mappings.

    Each call of `tensor` creates a new mapping, so the process holds only the pages of mappings in use.
    """

    def __init__(
        self, shape: tuple[int, ...], folder: Path, *, name: str, until: str, hint: str = ROOM_HINT
    ) -> None:
        """Reserve the disk space.

        Args:
            shape: Shape of the tensor.
            folder: Folder of the file.
            name: Name of the content in messages.
            until: Event at which the space is freed, for messages.
            hint: Advice if the disk is full.

        Raises:
            OutputError: If the disk has too little free space.
        """
        self.shape, size = shape, 4 * math.prod(shape)
        try:
            check_room(folder, size, name=name, until=until, hint=hint)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed as follows
            weakref.finalize(self, self._file.close)
            # Reserve the blocks now: if the disk is full, a write to a mapped page ends the process with
            # SIGBUS.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, size)
            else:
                self._file.truncate(size)
        except OSError as error:
            raise OutputError(
                f"{name} cannot be stored until {until}: {error.strerror}", hint=hint
            ) from error

    def tensor(self) -> torch.Tensor:
        """Map the file to a tensor. Writes to the tensor change the file."""
        return torch.from_numpy(np.memmap(self._file, np.float32, "r+", shape=self.shape))


def scratch_tensor(shape: tuple[int, ...], *, name: str, until: str, hint: str = ROOM_HINT) -> torch.Tensor:
    """Return an uninitialized float32 tensor, in an unnamed file if larger than `HELD_BYTES`.

    The disk space is freed with the tensor.

    Args:
        shape: Shape of the tensor.
        name: Name of the content in messages, in the plural.
        until: Event at which the space is freed, for messages: `scores are fitted`.
        hint: Advice if the disk is full.

    Raises:
        OutputError: If the disk has too little free space.
    """
    if 4 * math.prod(shape) <= HELD_BYTES:
        return torch.empty(shape)
    return ScratchFile(shape, Path(tempfile.gettempdir()), name=name, until=until, hint=hint).tensor()


def check_room(folder: Path, size: int, *, name: str, until: str, hint: str) -> None:
    """Check that the disk of a folder has `size` bytes of free space.

    For other arguments see `scratch_tensor`.

    Raises:
        OutputError: If the free space is too small.
    """
    if (free := shutil.disk_usage(folder).free) < size:
        raise OutputError(
            f"{folder}: {name} need {size / 1e9:.1f} GB of disk space until {until}, but {free / 1e9:.1f} GB are free",
            hint=hint,
        )
