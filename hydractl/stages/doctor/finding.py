"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    """How it stands with what was looked at."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        group: `libraries`, `machine` or `hub`.
        name: What was looked at.
        found: What is there, in words.
        state: Whether that will do.
        fix: What to type where it will not.
    """

    group: str
    name: str
    found: str
    state: FindingState = FindingState.OK
    fix: str | None = None
