"""Configuration of `doctor`. Importing this module does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from hydractl.settings import CheckedSettings, setting
from hydractl.stages.shared.command_config import CommandConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(CheckedSettings, CommandConfig):
    """How long to wait for the Hub."""

    timeout: float = setting(5.0, "Seconds to wait for the Hub.", above=0, high=600, metavar="S")
