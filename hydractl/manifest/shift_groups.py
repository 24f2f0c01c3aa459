"""What reports call the ID set, and conditions and reports numbers under corruption. Importing it loads no pydantic."""

from __future__ import annotations

from collections.abc import Iterable

ID_NAME = "id"
SHIFT = "shift"
"""All corruptions together."""


def scopes(measured: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Return what each name is the mean over, of corruptions at severities: `shift`, `shift:3`, `fog`, and `fog:3` itself.

    Args:
        measured: The corruption and the severity of each number, in the order of tables.
    """
    cells = [*dict.fromkeys(measured)]
    severities = sorted({severity for _, severity in cells})
    groups = {SHIFT: cells} if cells else {}
    groups |= {f"{SHIFT}:{level}": [cell for cell in cells if cell[1] == level] for level in severities}
    for name in dict.fromkeys(name for name, _ in cells):
        of_corruption = [cell for cell in cells if cell[0] == name]
        groups |= {name: of_corruption} | {
            f"{name}:{severity}": [(name, severity)] for _, severity in of_corruption
        }
    return groups
