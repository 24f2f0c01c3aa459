"""Configuration of `inspect`. Importing this module does not load torch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.provenance.command_config import CommandConfig
from hydractl.settings import Constraint, Setting, check, flag, required


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig(CommandConfig):
    """Options of `inspect`."""

    files: tuple[str, ...] = required(
        Setting(
            "A checkpoint, a folder, scores, a head mask, a report or predictions, or `-`; with `--verify`, then the files "
            "that the checkpoint was made from.",
            positional=True,
            metavar="FILE...",
            shows_default=False,
            excludes=Constraint(
                lambda config: config.of and not config.verify,
                message="`{config.of[0]}`: `inspect` shows only one file",
                hint="`--verify` compares more files with the lineage of the first",
            ),
        )
    )
    tensors: bool = flag(Setting("List the tensors of a checkpoint.", excludes=Constraint("lineage")))
    lineage: bool = flag(Setting("Show the files and stages that made a checkpoint."))
    verify: bool = flag(
        Setting(
            "Compare the digests of the other files with the lineage; exit with 5 if one differs.",
            needs=Constraint(
                "of",
                message="`--verify` needs files to verify",
                hint="give them: `{config.file} --verify a.st scores.json`",
            ),
            excludes=Constraint("tensors"),
        )
    )

    def __post_init__(self) -> None:
        check(self)
        file = self.file
        if file.startswith(("arch:", "hf-hub:")) and not self.shows_lineage:
            raise UsageError(
                f"{file}: `inspect` reads only local files",
                hint=(
                    f"`hydractl prune {shlex.quote(file)} --strategy random --keep-fraction 1 -o "
                    "base.st` makes a file with random weights"
                )
                if file.startswith("arch:")
                else ("download a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder"),
            )

    @property
    def file(self) -> str:
        """The file to describe."""
        return self.files[0]

    @property
    def of(self) -> tuple[str, ...]:
        """The files to verify."""
        return self.files[1:]

    @property
    def shows_lineage(self) -> bool:
        """Whether the lineage is shown or verified."""
        return self.lineage or self.verify
