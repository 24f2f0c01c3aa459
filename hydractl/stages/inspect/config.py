"""Configuration of `inspect`. Importing this module does not load torch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.heads.budget import HeadBudget
from hydractl.output.paths import OutputKind
from hydractl.reporting.matplotlib_figure import FORMATS
from hydractl.settings import Constraint, Setting, by_default, check, flag, required, setting
from hydractl.stages.shared import settings as shared
from hydractl.stages.shared.command_config import CommandConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig(CommandConfig):
    """Files to inspect or to compare."""

    files: tuple[str, ...] = required(
        Setting(
            "A checkpoint, a folder, scores, a head mask, a report or predictions, or `-`; several are compared.",
            positional=True,
            metavar="FILE...",
            shows_default=False,
        )
    )
    tensors: bool = flag(Setting("List the tensors of a checkpoint."))
    budget: HeadBudget | None = by_default(None, shared.budget(": as the scores say, else 2/3"))
    """Budget that turns scores into masks for the comparison; None for the budget of the scores."""
    plot: Path | None = setting(
        None,
        "Draw which heads are kept, as .png or .svg.",
        metavar="PATH",
        check_path=OutputKind(description="a figure", suffixes=FORMATS, decides=True, streams=False),
    )
    force: bool = flag(
        Setting(
            "Overwrite an existing figure.",
            panel=shared.OUTPUT,
            only_with=Constraint("plot", why="only a figure is written"),
        )
    )

    def __post_init__(self) -> None:
        check(self)
        if self.compares and self.tensors:
            raise UsageError(
                "`--tensors` needs exactly one checkpoint", hint="give one file and leave out `--plot`"
            )
        if not self.compares and self.budget is not None:
            raise UsageError(
                f"`{self.budget.option_text}`: applies only to scores that are compared or drawn",
                hint="give several files, or add `--plot heads.svg`",
            )
        if not self.files:
            raise UsageError("nothing to inspect", hint="give a file, or several to compare")
        for file in self.files:
            if file.startswith(("arch:", "hf-hub:")):
                raise UsageError(
                    f"{file}: `inspect` reads only local files",
                    hint=(
                        f"`hydractl prune {shlex.quote(file)} --strategy random --keep-fraction 1 -o "
                        "base.st` makes a file with random weights"
                    )
                    if file.startswith("arch:")
                    else (
                        "download a Hub model with `hf download ID --local-dir FOLDER` and inspect the folder"
                    ),
                )
        if self.files.count("-") > 1:
            raise UsageError("only one file can come from standard input")

    @property
    def compares(self) -> bool:
        """Whether head masks are compared or drawn, instead of one file described."""
        return len(self.files) > 1 or self.plot is not None

    @property
    def file(self) -> str:
        """The file to describe."""
        return self.files[0]
