"""Hints of `hydractl/data/reference.py`."""

from __future__ import annotations

from support.hints.table import Row

FILE = "data/reference.py"
ROWS = (
    Row(
        file=FILE,
        hint="for example `{}`; if the name contains `::`, end it with `::`: `{}::`",
        wrong="predict base.st images/a::limit",
        right="predict base.st images/a::limit=2",
    ),
    Row(
        file=FILE,
        hint="for example `val/::part=1/2`",
        wrong="predict base.st images/a::part=3/2",
        right="predict base.st images/a::part=1/2",
    ),
)
