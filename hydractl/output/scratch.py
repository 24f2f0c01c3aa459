"""Temporary tensors that may be too large for memory: they are stored in an unnamed file."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from hydractl.errors import OutputError

HELD_BYTES = 32 << 20
"""Maximum size of a tensor in memory; larger ones are stored in a file."""
ROOM_HINT = "set TMPDIR to a folder on a disk with more space"


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
    size = 4 * math.prod(shape)
    if size <= HELD_BYTES:
        return torch.empty(shape)
    try:
        folder = Path(tempfile.gettempdir())
        check_room(folder, size, name=name, until=until, hint=hint)
        with tempfile.TemporaryFile(dir=folder) as file:
            return torch.from_numpy(np.memmap(file, np.float32, "w+", shape=shape))
    except OSError as error:
        raise OutputError(f"{name} cannot be stored until {until}: {error.strerror}", hint=hint) from error


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
