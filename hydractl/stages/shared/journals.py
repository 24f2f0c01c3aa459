"""How a journal beside an output is told from what somebody else put in its place."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hydractl.errors import OutputExists
from hydractl.jsonfile import parse

LONGEST = 1 << 24
"""Of a line, in bytes."""


def first_line(path: Path, schema: str) -> tuple[dict[str, Any], int]:
    """Return the first line of the journal that stands at `path`, and its length in bytes.

    Raises:
        OutputExists: If something stands there whose first line is not of this schema: that is not ours, and never touched.
    """
    if path.is_file() and not path.is_symlink():
        with contextlib.suppress(OSError, ValueError):
            with path.open("rb") as file:
                line = file.readline(LONGEST)
            first = parse(line)
            if isinstance(first, dict) and first.get("schema") == schema:
                return first, len(line)
    raise OutputExists(
        f"{path}: is where the journal of the run goes, and this version of hydractl did not write what is there",
        hint="move it away, or choose another name with `-o`",
    )
