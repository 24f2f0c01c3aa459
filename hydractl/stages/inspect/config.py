"""Configuration of `inspect`. Importing this module does not load torch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.settings import Setting, check, flag, required
from hydractl.stages.shared.command_config import CommandConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig(CommandConfig):
    """The file to inspect."""

    file: str = required(
        Setting(
            "A checkpoint, a folder, scores, a head mask, a report or predictions, or `-`.",
            positional=True,
            metavar="FILE",
            shows_default=False,
        )
    )
    tensors: bool = flag(Setting("List the tensors of a checkpoint."))

    def __post_init__(self) -> None:
        check(self)
        file = self.file
        if file.startswith(("arch:", "hf-hub:")):
            raise UsageError(
                f"{file}: `inspect` reads only local files",
                hint=(
                    f"`hydractl prune {shlex.quote(file)} --strategy random --keep-fraction 1 -o "
                    "base.st` makes a file with random weights"
                )
                if file.startswith("arch:")
                else ("download a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder"),
            )
