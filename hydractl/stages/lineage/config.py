"""Configuration of `lineage`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.errors import UsageError
from hydractl.settings import Setting, flag, required
from hydractl.stages.shared.command_config import CommandConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageConfig(CommandConfig):
    """The model, and files to compare with its lineage."""

    files: tuple[str, ...] = required(
        Setting(
            "A checkpoint, a folder or a Hub id; with `--verify`, then the files that it was made from.",
            positional=True,
            metavar="MODEL [FILE...]",
            shows_default=False,
        )
    )
    verify: bool = flag(
        Setting("Compare the digests of FILE... with the lineage; exit with 5 if one differs.")
    )

    def __post_init__(self) -> None:
        if self.verify and not self.of:
            raise UsageError(
                "`--verify` needs files to verify",
                hint=f"give them: `{self.model} --verify a.st scores.json`",
            )
        if self.of and not self.verify:
            raise UsageError(
                f"`{self.of[0]}`: `lineage` shows only one model",
                hint="`--verify` compares more files with it",
            )

    @property
    def model(self) -> str:
        """The model."""
        return self.files[0]

    @property
    def of(self) -> tuple[str, ...]:
        """The files to verify."""
        return self.files[1:]
