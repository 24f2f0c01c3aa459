"""Rows of the hint table, one module for each folder of the package."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

from support.hints.table import Row


def all_rows() -> list[Row]:
    """Return the rows of all modules of this package, without those of research if it is not installed."""
    installed = find_spec("hydractl.research") is not None
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    rows = [
        row
        for name in names
        if installed or not name.startswith("research")
        for row in importlib.import_module(f"{__name__}.{name}").ROWS
    ]
    return [row for row in rows if installed or not row.research]
