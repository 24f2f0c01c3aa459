"""Storage on the disk, so that a power loss leaves outputs whole."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
"""Errors of file systems that do not store folders, or files, on request."""


def sync(descriptor: int) -> None:
    """Wait until the disk stores an open file, or the names in an open folder.

    Raises:
        OSError: If the disk fails.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def sync_path(path: Path) -> None:
    """Do the same for a path. A folder that this process must not read is skipped.

    Raises:
        OSError: If the disk fails.
    """
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def has_content(path: Path) -> bool:
    """Return whether an output exists. A file of 0 bytes, as a power loss leaves it, counts as missing."""
    return path.exists() and (not path.is_file() or path.stat().st_size > 0)
