"""Sizes as people type them."""

from __future__ import annotations

import re

from hydractl.errors import UsageError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}": base ** (i + 1)
    for i, letter in enumerate("KMGT")
    for kind, base in (("B", 1000), ("IB", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


def bytes_of(option: str, text: str) -> int:
    """Return how many bytes a size such as `2GiB`, `512MB` or `1000000` is.

    KB, MB, GB and TB are powers of 1000, KiB, MiB, GiB and TiB of 1024; upper and lower case are the same.

    Args:
        option: Where it was given, for messages.
        text: What was given.

    Raises:
        UsageError: If it is no size, or less than one byte.
    """
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS.get(found[2].upper(), 0) if found else 0.0
    if not 1 <= size < 1 << 63:
        raise UsageError(
            f"`{option} {text}`: is not a size",
            hint="a number and a unit: 512MB, 2GiB; without a unit, bytes",
        )
    return int(size)
