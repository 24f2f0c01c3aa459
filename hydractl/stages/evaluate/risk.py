"""`--threshold-for`: the share of wrong answers that a threshold is to allow. Importing it loads no torch."""

from __future__ import annotations

import re

from hydractl.errors import UsageError
from hydractl.settings import number

OPTION = "--threshold-for"
DELTA = 0.05
GRAMMAR = re.compile(r"\s*risk\s*<=\s*(\S+)\s*")


def parse_risk(text: str) -> float:
    """Read `risk<=R`.

    Raises:
        UsageError: If it is anything else, or R is no share of wrong answers.
    """
    found = GRAMMAR.fullmatch(text)
    if found is None:
        raise UsageError(
            f"`{OPTION} {text}`: expected `risk<=R`, the share of wrong answers that is allowed",
            hint=f"for example `{OPTION} 'risk<=0.01'`, in quotes: `<` means something to a shell",
        )
    risk = number(OPTION, found[1])
    if not 0 < risk < 1:
        raise UsageError(
            f"`{OPTION} {text}`: a share lies between 0 and 1",
            hint=f"1 % is written 0.01: `{OPTION} 'risk<={risk / 100:g}'`" if 1 <= risk < 100 else None,
        )
    return risk


def told(risk: float) -> str:
    """Return it as it is typed."""
    return f"risk<={risk:g}"
