"""Options of a recipe as they are typed."""

from __future__ import annotations

from math import isfinite

from hydractl.errors import UsageError


def parse_names(option: str, text: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated list; `none` is the empty one, None stays None.

    Raises:
        UsageError: If an item is empty.
    """
    if text is None or text == "none":
        return None if text is None else ()
    names = tuple(item.strip() for item in text.split(","))
    if not all(names):
        raise UsageError(f"`{option} {text}`: an item of the list is empty")
    return names


def parse_rates(text: str | None) -> tuple[float, ...] | None:
    """Read `--lr X[,Y,...]`.

    Raises:
        UsageError: If an item is not a number.
    """
    names = parse_names("--lr", text)
    return None if names is None else tuple(_number("--lr", name) for name in names)


def parse_warmup(text: str | None) -> int | float | None:
    """Read `--warmup`: a whole number is steps, a number with a point a fraction.

    Raises:
        UsageError: If it is no number.
    """
    if text is None:
        return None
    return int(text) if text.isdecimal() else _number("--warmup", text)


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"`{option}`: `{text}` is not a number") from error
    if not isfinite(value):
        raise UsageError(f"`{option}`: `{text}` is not finite")
    return value
