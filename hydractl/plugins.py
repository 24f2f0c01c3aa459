"""Packages with additional commands, options and table rows. The core does not import them directly.

Importing this module does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PACKAGES = ("hydractl.research",)
"""Packages with a `PLUGIN`. They are listed in code and not as entry points, because a checkout on PYTHONPATH
has no installation metadata. A package that is not installed adds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Additions of a package.

    A path is `module:name`, and the module is imported with the extended table or command.

    Attributes:
        commands: Paths of command functions, by command name. Help lists the commands together with `eval`.
        extensions: Paths of `settings.Extension` classes, by command name. The settings become options of the
            command.
        rows: Path of the `RowSyntax` for derived rows of `eval --compare`.
        scores: Path of the additional `Method` rows for `score --method`.
        one_network_methods: Values of `method` in the provenance of hydras trained as a single network with
            several classifiers.
        fields: Paths of pydantic models, by the name of the inheriting model in `manifest.report`.
        scopes: Path of an object with additional scopes of labelled data: `title(scope)` and `judged`, the
            scope of the verdict.
        sections: Path of functions from a `Compared` report to a `Section` of its pages, by the name of the
            preceding section.
        figures: Path of functions from a `Compared` report to a `Figure` or None, by the name of the
            preceding figure.
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
    """Return the object at the path in `attribute` for each plugin with a path."""
    return [load(path) for plugin in plugins() if (path := getattr(plugin, attribute))]


def functions_after(table: str, name: str) -> list[Callable[..., Any]]:
    """Return the functions of plugins for `sections` or `figures` (`table`) to insert after `name`."""
    return [function for functions in added(table) for function in functions.get(name, ())]


def load(path: str) -> Any:  # noqa: ANN401 - the caller knows the type
    """Import `module:name` and return the object."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
