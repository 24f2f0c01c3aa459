"""Configuration of `data`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.data.presets import PRESETS, of_name
from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.settings import Setting, required
from hydractl.stages.shared.command_config import CommandConfig

LIST, SHOW = "list", "show"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(CommandConfig):
    """Which data sets to show."""

    words: tuple[str, ...] = required(
        Setting(
            "`list` lists all data sets; `show NAME...` shows all details of some.",
            positional=True,
            metavar="ACTION [NAME...]",
            suggestions=(LIST, SHOW, *PRESETS),
            shows_default=False,
        )
    )

    def __post_init__(self) -> None:
        if self.action not in {LIST, SHOW}:
            suggestion = f"`hydractl data {SHOW} {self.action}`" if self.action in PRESETS else None
            near = did_you_mean(self.action, (LIST, SHOW))
            raise UsageError(
                f"`{self.action}`: expected `{LIST}` or `{SHOW} NAME...`", hint=suggestion or near
            )
        if self.action == LIST and self.names:
            raise UsageError(
                f"`{LIST} {self.names[0]}`: `{LIST}` takes no name",
                hint=f"`hydractl data {SHOW} {self.names[0]}` shows one data set",
            )
        if self.action == SHOW and not self.names:
            raise UsageError(
                f"`{SHOW}` needs the name of a data set", hint="`hydractl data list` lists the names"
            )
        for name in self.names:
            of_name(name, reference=name)

    @property
    def action(self) -> str:
        """`list` or `show`."""
        return self.words[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the data sets to show."""
        return self.words[1:]
