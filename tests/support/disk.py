"""A simulated disk with data loss at any moment. Calls of `fsync` determine the stored files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SCRATCH = (".hydractl-part", ".hydractl-lock", ".journal")
"""Suffixes of temporary files, which are not outputs."""


class Disk:
    """Records `fsync`, renames and removals, and the losses of a power failure after each call.

    A rename may reach the disk at any time, so the file must be stored before. A removal may too, so the
    folder must be stored after a rename and before the next removal in this folder.

    Attributes:
        losses: Sentences about files lost in a power failure.
        renamed: Targets of renames, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.losses: list[str] = []
        self.renamed: list[str] = []
        self._stored: dict[tuple[int, int], tuple[int, int]] = {}
        self._pending: dict[Path, str] = {}
        fsync, replace, rename, unlink = os.fsync, os.replace, os.rename, os.unlink

        def stored(descriptor: int) -> None:
            fsync(descriptor)
            status = os.fstat(descriptor)
            self._stored[status.st_dev, status.st_ino] = (status.st_size, status.st_mtime_ns)
            self._pending = {
                folder: name
                for folder, name in self._pending.items()
                if not os.path.samestat(folder.stat(), status)
            }

        def moved(call, source, target, **named):
            self._check(Path(source), Path(target))
            call(source, target, **named)
            self.renamed.append(Path(target).name)
            if not os.fspath(target).endswith(SCRATCH):
                self._pending[Path(target).parent] = Path(target).name

        def removed(path, **named):
            unlink(path, **named)
            if not os.fspath(path).endswith(SCRATCH) and not named:
                self._losses_of(Path(path).parent, f"when {Path(path).name} goes")

        monkeypatch.setattr(os, "fsync", stored)
        monkeypatch.setattr(os, "replace", lambda *paths, **named: moved(replace, *paths, **named))
        monkeypatch.setattr(os, "rename", lambda *paths, **named: moved(rename, *paths, **named))
        monkeypatch.setattr(os, "unlink", removed)
        monkeypatch.setattr(os, "remove", removed)

    def end(self) -> list[str]:
        """Return the losses of a power failure now or earlier, after all outputs were reported."""
        for folder in [*self._pending]:
            self._losses_of(folder, "at the end")
        return self.losses

    def _check(self, source: Path, target: Path) -> None:
        if target.name.endswith(SCRATCH):
            return
        for path in (source, *source.rglob("*")):
            status = path.stat()
            if self._stored.get((status.st_dev, status.st_ino)) != (status.st_size, status.st_mtime_ns):
                self.losses.append(f"{path.name} is not stored before {target.name} gets its name")

    def _losses_of(self, folder: Path, when: str) -> None:
        if name := self._pending.get(folder):
            self.losses.append(f"the name {name} is not stored {when}")
