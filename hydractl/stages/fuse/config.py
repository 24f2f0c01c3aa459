"""What `fuse` is told. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hydractl.errors import UsageError
from hydractl.settings import Setting, by_default, check, flag, required, setting
from hydractl.stages.shared import settings as shared
from hydractl.stages.shared.classes import NOTHING_NAMED, Naming


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseConfig:
    """What to fuse, and how."""

    models: tuple[str, ...] = required(
        Setting("Checkpoints, folders or Hub ids.", positional=True, metavar="MODEL...", shows=False)
    )
    """The members, M >= 1: pruned or not, fine-tuned or not, of one architecture."""
    out: Path = required(shared.OUT)
    mlp: Literal["merge", "keep"] = setting(
        "merge", "Average MLPs that differ, or keep each member's own.", choices=("merge", "keep")
    )
    """`merge` is the paper's."""
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    seed: int = by_default(0, shared.SEED)
    """Of the random batch that `verify` compares on."""
    verify: bool = flag(shared.VERIFY, on=True)
    force: bool = flag(shared.FORCE)

    def __post_init__(self) -> None:
        check(self)
        if not self.models:
            raise UsageError("nothing to fuse", hint="`hydractl fuse a.st b.st c.st -o hydra.st`")
        if sum(m == "-" for m in self.models) > 1:
            raise UsageError("only one member can come from standard input")
