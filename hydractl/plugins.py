"""Packages beside the core that add rows to its tables. The core imports none of them, and nothing here loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

PACKAGES = ("hydractl.research",)
"""Packages with a `PLUGIN`. They are listed in code, not as entry points, because a checkout on PYTHONPATH
has no installation metadata.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a package adds to the core's tables. A path is `module:name`; it is imported when its table is.

    Attributes:
        commands: Paths of commands' functions by the commands' names; help lists them beside `eval`.
        baselines: Path of the `BaselineOptions` classes that `eval --compare KIND:` knows.
        methods: Path of the `TrainingMethod` classes that `finetune --method` knows.
        analyses: Path of the `Analysis` rows that `eval --analyse` knows.
    """

    commands: Mapping[str, str]
    baselines: str
    methods: str
    analyses: str


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return what each package adds, in the order of `PACKAGES`."""
    return tuple(import_module(package).PLUGIN for package in PACKAGES)


def load(path: str) -> Any:  # noqa: ANN401 - whoever loads it knows the type
    """Import `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
