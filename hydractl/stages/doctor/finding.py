"""Results of checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    """State of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check.

    Attributes:
        group: `libraries`, `machine` or `hub`.
        name: Object of the check.
        found: Description of the present state.
        state: Whether the check passed.
        fix: What to type if the check failed.
    """

    group: str
    name: str
    found: str
    state: FindingState = FindingState.OK
    fix: str | None = None
