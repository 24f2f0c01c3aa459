"""Room for what is too large for memory and gone when the command ends: a file without a name."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from hydractl.errors import OutputError

HELD_BYTES = 32 << 20
"""How much of one data set's predictions or features stays in memory."""
ROOM_HINT = "set TMPDIR to a folder on a disk with more space"


def scratch_tensor(shape: tuple[int, ...], *, name: str, until: str, hint: str = ROOM_HINT) -> torch.Tensor:
    """Return a tensor of that shape, float32, in memory or, beyond `HELD_BYTES`, in a file without a name, which goes with it.

    Args:
        shape: Its axes.
        name: What messages call its content, in the plural.
        until: How long it is kept, for messages: `scores are fitted`.
        hint: What to do where there is no room.

    Raises:
        OutputError: If there is no room for such a file.
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
    """Refuse to write so many bytes into a folder whose disk has fewer left; arguments as above.

    Raises:
        OutputError: If it has.
    """
    if (free := shutil.disk_usage(folder).free) < size:
        raise OutputError(
            f"{folder}: {name} need {size / 1e9:.1f} GB of disk space until {until}, but {free / 1e9:.1f} GB are free",
            hint=hint,
        )
