"""Packages beside the core that add commands, options and table rows. The core imports none of them. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        rows: Path of the `RowSyntax` of rows that `eval --compare` derives from models.
        scores: Path of the `Method` rows that `score --method` knows.
        one_network_methods: Values of `method` in the lineage of hydras that train as one network with several classifiers.
        fields: Paths of pydantic models by the names of the models of `manifest.report` that inherit their fields.
        scopes: Path of an object with the names of further scopes of labelled data: `title(scope)` and `judged`, the scope of the verdict.
        sections: Path of functions from a `Compared` report to a `Section` of its pages, by the name of the section before.
        figures: Path of functions from a `Compared` report to a `Figure` or None, by the name of the figure before.
    """

    commands: Mapping[str, str] = field(default_factory=dict[str, str])
    extensions: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: str = ""
    scores: str = ""
    one_network_methods: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    scopes: str = ""
    sections: str = ""
    figures: str = ""


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return the additions of each installed package, in the order of `PACKAGES`."""
    return tuple(import_module(package).PLUGIN for package in PACKAGES if find_spec(package))


def added(attribute: str) -> list[Any]:
    """Return the object that each plugin has at the path of an attribute."""
    return [load(path) for plugin in plugins() if (path := getattr(plugin, attribute))]


def functions_after(table: str, name: str) -> list[Callable[..., Any]]:
    """Return the functions that plugins place after the section or figure `name` in `sections` or `figures`."""
    return [function for functions in added(table) for function in functions.get(name, ())]


def load(path: str) -> Any:  # noqa: ANN401 - whoever loads it knows the type
    """Import `module:name`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
