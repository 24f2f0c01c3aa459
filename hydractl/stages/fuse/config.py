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
    mlp: Literal["merge", "keep"] | None = setting(
        None,
        "Average MLPs that differ, or keep each member's own (default: merge; with `--merge-trunk`: keep).",
        choices=("merge", "keep"),
    )
    """`merge` is the paper's."""
    merge_trunk: int | None = setting(
        None,
        "Average whatever differs before block L, the embedding too; it then runs once.",
        low=0,
        metavar="L",
    )
    """0 averages nothing. Each of several towers is cut at its own depth."""
    force_merge: bool = flag(Setting("Average members whose lineage does not tell that one base is theirs."))
    own_from: int | None = setting(
        None,
        "Let members own everything from block L on, and readout and head, even while it is equal: to train the hydra.",
        low=0,
        tells=False,
        metavar="L",
    )
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
        if self.force_merge and not self.merges:
            raise UsageError(
                "`--force-merge` has no effect: nothing is averaged",
                hint="add `--merge-trunk L` or `--mlp merge`, or leave it out",
            )

        if self.own_from is not None and self.own_from < (self.merge_trunk or 0):
            raise UsageError(
                f"`--own-from {self.own_from}`: members cannot own blocks that `--merge-trunk {self.merge_trunk}` averages",
                hint=f"add `--own-from {self.merge_trunk}`, or a lower `--merge-trunk`",
            )

    @property
    def mlps(self) -> Literal["merge", "keep"]:
        """What becomes of MLPs that differ."""
        return self.mlp or ("merge" if self.merge_trunk is None else "keep")

    @property
    def merges(self) -> bool:
        """Whether tensors that differ may be averaged."""
        return self.mlps == "merge" or bool(self.merge_trunk)
