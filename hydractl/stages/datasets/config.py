"""What `data` is told. Importing it loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.data.presets.registry import PRESETS, of_name
from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.settings import Setting, required
from hydractl.stages.shared.command_config import CommandConfig

LIST, SHOW = "list", "show"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(CommandConfig):
    """Which data sets to tell of."""

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
                f"`{self.action}`: is neither `{LIST}` nor `{SHOW} NAME...`", hint=suggestion or near
            )
        if self.action == LIST and self.names:
            raise UsageError(
                f"`{LIST} {self.names[0]}`: all are listed",
                hint=f"`hydractl data {SHOW} {self.names[0]}` tells of one",
            )
        if self.action == SHOW and not self.names:
            raise UsageError(f"`{SHOW}` which data set?", hint="`hydractl data list` names all")
        for name in self.names:
            of_name(name, reference=name)

    @property
    def action(self) -> str:
        """`list` or `show`."""
        return self.words[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Which to show."""
        return self.words[1:]
