"""Packages beside the core that add commands, options and table rows. The core imports none of them. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PACKAGES = ("hydractl.research",)
"""Packages with a `PLUGIN`. They are listed in code, not as entry points, because a checkout on PYTHONPATH
has no installation metadata. A package that is not installed adds nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Additions of one package. A path is `module:name`; the module is imported with the table or command that it extends.

    Attributes:
        commands: Paths of commands' functions by the commands' names; help lists them beside `eval`.
        extensions: Paths of `settings.Extension` classes by the commands' names; their settings become options of the command.
        baselines: Path of the `BaselineOptions` classes that `eval --compare KIND:` knows.
        scores: Path of the `Method` rows that `score --method` knows.
        one_network_methods: Values of `method` in the lineage of hydras that train as one network with several classifiers.
        analyses: Path of the `Analysis` rows that `eval --analyse` knows.
    """

    commands: Mapping[str, str] = field(default_factory=dict[str, str])
    extensions: Mapping[str, str] = field(default_factory=dict[str, str])
    baselines: str
    scores: str | None = None
    one_network_methods: tuple[str, ...] = ()
    analyses: str


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return the additions of each installed package, in the order of `PACKAGES`."""
    return tuple(import_module(package).PLUGIN for package in PACKAGES if find_spec(package))


def load(path: str) -> Any:  # noqa: ANN401 - whoever loads it knows the type
    """Import `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
