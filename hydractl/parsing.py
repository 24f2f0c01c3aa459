"""What was typed, as values: a configuration of options, lists, numbers, sizes, and the `option=value,...` of a reference.

Importing this module does not load torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, fields
from math import isfinite
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean
from hydractl.settings import Option, field_values, options_of

C = TypeVar("C")
Cut: TypeAlias = Callable[[str, Iterable[str]], str]
SHORT: Mapping[str, Cut] = MappingProxyType({})
_MADE_OF: ContextVar[tuple[object, tuple[tuple[Option, object], ...]] | None] = ContextVar(
    "made_of", default=None
)


def configured(config: type[C], command_values: Mapping[str, object]) -> C:
    """Return the configuration that options make; what is None was not typed.

    Raises:
        UsageError: If a text cannot be read, or the configuration refuses itself.
    """
    option_values = tuple(
        (o, command_values[o.name]) for o in options_of(config) if command_values[o.name] is not None
    )
    parsed_values = {o.name: _read(o, value) for o, value in option_values}
    # what several options make knows its own bounds, under names that nobody typed
    for option, _ in option_values:
        option.setting.check(option.name, parsed_values[option.name])
    configuration = config(**field_values(config, parsed_values))
    _MADE_OF.set((configuration, option_values))
    return configuration


def _read(option: Option, command_value: object) -> object:
    try:
        return option.setting.read(command_value)
    except UsageError as error:
        error.hint = option.setting.hint(option.name, error.hint)
        raise


def made_of(config: object) -> tuple[tuple[Option, object], ...] | None:
    """Return the options that `configured` made a configuration of, and what was typed; None if it was not the last one made."""
    latest, options = _MADE_OF.get() or (None, None)
    return options if latest is config else None


def words(option: str, text: str) -> tuple[str, ...]:
    """Split a comma-separated list; `none` is the empty one.

    Raises:
        UsageError: If an item is empty.
    """
    words_of_list = () if text == "none" else tuple(item.strip() for item in text.split(","))
    if not all(words_of_list):
        raise UsageError(f"`{option} {text}`: an item of the list is empty")
    return words_of_list


def number(option: str, text: str) -> float:
    """Read a finite number.

    Raises:
        UsageError: If it is none.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"`{option}`: `{text}` is not a number") from error
    if not isfinite(value):
        raise UsageError(f"`{option}`: `{text}` is not finite")
    return value


def written(
    kind: type[C], text: str, *, where: str, called: str, example: str, long: Mapping[str, Cut] = SHORT
) -> C:
    """Return the settings that `option=value,...` says: a reference's own, each declared as a field.

    Args:
        kind: A dataclass of declared fields.
        text: What was typed; may be empty.
        where: The whole reference, for messages.
        called: What has these options, likewise.
        example: A reference that is right, for hints.
        long: Options whose value may hold commas: each with what cuts it off a text, given the names of all options.

    Raises:
        UsageError: If one is unknown, missing, given twice or out of range.
    """
    settings = {d.name: d.setting for d in Option.of(kind)}
    option_texts: dict[str, str] = {}
    while text:
        key, equals, remainder = text.partition("=")
        value = long[key](remainder, {*settings, *long}) if key in long else remainder.partition(",")[0]
        text = remainder[len(value) + 1 :]
        if not equals or not key or not value:
            raise UsageError(
                f"`{where}`: expected option=value, found `{key}{equals}`", hint=f"for example `{example}`"
            )
        if key in option_texts:
            raise UsageError(f"`{where}`: the option `{key}` appears twice")
        if key not in settings:
            hint = did_you_mean(key, settings) or (f"there are {', '.join(settings)}" if settings else None)
            raise UsageError(f"`{where}`: `{called}` has no option `{key}`", hint=hint)
        option_texts[key] = value
    for setting_field in fields(kind):  # type: ignore[arg-type]  # a dataclass, which its bound cannot say
        if setting_field.default is MISSING and setting_field.name not in option_texts:
            raise UsageError(
                f"`{where}`: `{called}` needs `{setting_field.name}=`", hint=f"for example `{example}`"
            )
    try:
        return kind(**{option: settings[option].read(value) for option, value in option_texts.items()})
    except UsageError as error:
        raise UsageError(f"`{where}`: {error.message}", hint=error.hint) from error


def whole_number(text: str) -> int:
    """Read a whole number.

    Raises:
        UsageError: If it is none.
    """
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"`{text}` is not a whole number") from error


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
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS.get(match[2].upper(), 0) if match else 0.0
    if not 1 <= size < 1 << 63:
        raise UsageError(
            f"`{option} {text}`: is not a memory size",
            hint="write a number and a unit, such as 512MB or 2GiB; a number without a unit means bytes",
        )
    return int(size)
