"""Lists in the cells of a table: real lists, and their text forms in JSON, Python and numpy, or with a separator."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hydractl.strict_json import NotJSONError, parse

AS_IS = "none"
"""Value of `label-separator=` for names that contain a separator."""
NAMED_SEPARATORS = {"comma": ",", "space": None, "tab": "\t"}
"""Separators that a data reference names; `space` is any white space."""
_ITEM = re.compile(
    r"""(?:np\.\w+\()?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|True|False|[-+]?\d+\.?\d*)\)?(\s*,\s*|\s+|$)""",
    re.DOTALL,
)
_UNREADABLE = re.compile(r"[\[({].*[,'\"].*[\])}]|\w+\(.*['\"].*\)", re.DOTALL)


def list_in(cell: object) -> list[Any] | None:
    """Return the list in a cell, None for other cells.

    Text forms: JSON; Python's lists, tuples and sets, as pandas writes them (`['a', 'b']`); numpy's arrays, which have no commas
    (`['a' 'b']`, `[0 1]`).
    """
    if isinstance(cell, str) and (text := cell.strip())[:1] + text[-1:] in {"[]", "()", "{}"}:
        with suppress(NotJSONError):
            return list_in(parse(text))
        items = [*_ITEM.finditer(body := text[1:-1].strip())]
        are_whole = "".join(part[0] for part in items) == body
        # Python joins neighbours without a comma: a mixture of both forms has two meanings
        if are_whole and len({"," in part[2] for part in items[:-1]}) <= 1:
            with suppress(SyntaxError, ValueError):
                return [ast.literal_eval(part[1]) for part in items]
    return cell if isinstance(cell, list) else None


def is_unreadable_list(text: str) -> bool:
    """Return whether a text looks like a list with several items that `list_in` cannot read."""
    return _UNREADABLE.fullmatch(text) is not None and list_in(text) is None


def split_labels(cell: object, separator: str | None) -> object:
    """Return the labels of a cell as a list if there is a separator. Missing cells are empty lists."""
    if separator in {None, AS_IS} or list_in(cell) is not None:
        return cell
    text = "" if cell is None or cell != cell else str(cell)  # noqa: PLR0124 - NaN, which pandas writes for a missing cell
    return [
        part.strip() for part in text.split(NAMED_SEPARATORS.get(separator or "", separator)) if part.strip()
    ]


def separator_in(names: Iterable[str]) -> str | None:
    """Return the separator of labels in names such as `bad|long`, None if names are single labels.

    A label of a list has several places: `long` is in `bad|long` and alone. A part of one name has one place: `Korea, North`.
    """
    for separator in "|;,":
        places = {(part.strip(), i) for name in names for i, part in enumerate(name.split(separator))}
        if len({part for part, _ in places}) < len(places):
            return separator
    return None
