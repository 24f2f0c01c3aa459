"""Temporary tensors that may be too large for memory: they are stored in an unnamed file."""

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
"""Maximum size of a tensor in memory; larger ones are stored in a file."""
ROOM_HINT = "set TMPDIR to a folder on a disk with more space"


class ScratchFile:
    """A float32 tensor in an unnamed file, which is freed when neither this object nor a mapping of it exists.

    Each mapping is a new one, so the process holds only the pages of mappings in use.
    """

    def __init__(
        self, shape: tuple[int, ...], folder: Path, *, name: str, until: str, hint: str = ROOM_HINT
    ) -> None:
        """Reserve the disk space.

        Args:
            shape: Shape of the tensor.
            folder: Folder of the file.
            name: Name of its content in messages.
            until: When it is freed.
            hint: Advice if the disk is full.

        Raises:
            OutputError: If the disk has no room for the file.
        """
        self.shape, size = shape, 4 * math.prod(shape)
        try:
            check_room(folder, size, name=name, until=until, hint=hint)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed as follows
            weakref.finalize(self, self._file.close)
            # a write to a mapped page ends the process by SIGBUS if the disk is full, so the blocks are reserved here
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, size)
            else:
                self._file.truncate(size)
        except OSError as error:
            raise OutputError(
                f"{name} cannot be stored until {until}: {error.strerror}", hint=hint
            ) from error

    def tensor(self) -> torch.Tensor:
        """Map the file and return it as a tensor; writes to the tensor are writes to the file."""
        return torch.from_numpy(np.memmap(self._file, np.float32, "r+", shape=self.shape))


def scratch_tensor(shape: tuple[int, ...], *, name: str, until: str, hint: str = ROOM_HINT) -> torch.Tensor:
    """Return an uninitialised float32 tensor, in memory or, if larger than `HELD_BYTES`, in an unnamed file that is freed with it.

    Args:
        shape: Shape of the tensor.
        name: Name of its content in messages, in the plural.
        until: When it is freed, for messages: `scores are fitted`.
        hint: Advice if the disk is full.

    Raises:
        OutputError: If the disk has no room for the file.
    """
    if 4 * math.prod(shape) <= HELD_BYTES:
        return torch.empty(shape)
    return ScratchFile(shape, Path(tempfile.gettempdir()), name=name, until=until, hint=hint).tensor()


def check_room(folder: Path, size: int, *, name: str, until: str, hint: str) -> None:
    """Check that the disk of a folder has room for `size` bytes. The other arguments are those of `scratch_tensor`.

    Raises:
        OutputError: If it has not.
    """
    if (free := shutil.disk_usage(folder).free) < size:
        raise OutputError(
            f"{folder}: {name} need {size / 1e9:.1f} GB of disk space until {until}, but {free / 1e9:.1f} GB are free",
            hint=hint,
        )
