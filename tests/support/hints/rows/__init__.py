"""Rows of the hint table, one module for each folder of the package."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

from support.hints.table import Row


def all_rows() -> list[Row]:
    """Return the rows of all modules of this package, without those of research if it is not installed."""
    absent = "research" if find_spec("hydractl.research") is None else "-"
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith(absent))
    rows = [row for name in names for row in importlib.import_module(f"{__name__}.{name}").ROWS]
    return [row for row in rows if not row.file.startswith(absent)]
