"""Names of classes: how they are compared and counted, and how `::map=OLD:NEW,...` writes them. Importing this module does not load torch."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from hydractl.errors import UsageError

LEAST = 2
"""Maximum number of classes."""
MAP = "map"
POSITION, NUMBER, ALPHABET = "position", "number", "alphabet"
ORDERS = (POSITION, NUMBER, ALPHABET)
"""Values of `classes-by=`."""
TWO_ORDERS = (
    f"classes are sorted by number, not alphabetically as in torchvision: `::classes-by={ALPHABET}` "
    f"sorts alphabetically, `::classes-by={NUMBER}` confirms this order"
)
"""Message if numbers within names determine the order of classes."""

_PLACEHOLDER = re.compile(r"(?:label_|unnamed class )?([0-9]{1,18})(?:\.0+)?", re.IGNORECASE)
_COUNTED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_PLAIN = r'[^",:=][^,:]*'
_QUOTED = r'"(?:[^"]|"")+"'
_PAIR = re.compile(rf"({_QUOTED}|{_PLAIN}):({_QUOTED}|{_PLAIN})(?:,|$)")
_NEEDS_NO_QUOTES = re.compile(r'[^",:=]+')


def normal(name: str) -> str:
    """Return a class name as names are compared: in Unicode's form NFC, without blanks around it."""
    return unicodedata.normalize("NFC", name.strip())


def folded(name: str) -> str:
    """Return a class name as names are compared where capitals do not count."""
    return normal(normal(name).casefold())


def placeholders(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that are no more than numbers, as `7`, `7.0` and `LABEL_7`; None if a name is more."""
    return _distinct([int(match[1]) for match in map(_PLACEHOLDER.fullmatch, names) if match], names)


def counters(names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the numbers of names that differ in their last number alone, as `class0` and `class10`; else None."""
    matches = [*filter(None, map(_COUNTED.fullmatch, names))]
    one_stem = len({match[1] for match in matches}) == 1 and len(names) > 1
    return _distinct([int(match[2]) for match in matches], names) if one_stem else None


def _distinct(numbers: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
    return tuple(numbers) if len({*numbers}) == len(names) else None


def by_number(names: Sequence[str]) -> list[int] | None:
    """Return the positions of names in the order of their numbers; None where they are not numbered alike."""
    numbers = placeholders(names) or counters(names)
    return None if numbers is None else sorted(range(len(names)), key=numbers.__getitem__)


def has_two_orders(names: Sequence[str]) -> bool:
    """Return whether names stand in the order of the alphabet, and that of their numbers is another."""
    order = by_number(names)
    return order is not None and list(names) == sorted(names) and order != sorted(order)


def continues(option: str, part: str) -> bool:
    """Return whether what follows a comma belongs to the option before it, which is then a list of renamed classes."""
    if not option.startswith(f"{MAP}="):
        return False
    old, colon, _ = part.partition(":")
    return option.count('"') % 2 == 1 or part.startswith('"') or (bool(colon) and "=" not in old)


def split_source(text: str) -> tuple[str, str, str]:
    """Split a data reference at the last `::` that is not within a quoted name, as `str.partition` does."""
    places = [at for at in range(len(text)) if text.startswith("::", at)]
    for at in reversed(places):
        options = [split_keys(text[before + 2 : at])[-1] for before in places if before < at]
        if not any(last.startswith(f"{MAP}=") and last.count('"') % 2 for last in options):
            return text[:at], "::", text[at + 2 :]
    return text, "", ""


def split_keys(text: str) -> list[str]:
    """Split `key=value,...` at commas, except those between and within renamed classes."""
    options: list[str] = []
    for part in text.split(","):
        if options and continues(options[-1], part):
            options[-1] += f",{part}"
        else:
            options.append(part)
    return options


def read_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Return the old and new names of `OLD:NEW,...`.

    A name with one of `" , : =` in it stands in double quotes, and a quote in it twice.

    Raises:
        UsageError: If it is malformed.
    """
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(text) or not pairs:
        match = _PAIR.match(text, at)
        if match is None:
            raise UsageError(
                f"`{MAP}={text}`: expected OLD:NEW,...",
                hint='put names that contain one of `" , : =` in double quotes, and double each quote '
                "in them: `'data::map=\"a:b, c\":d'`",
            )
        pairs.append((_read(match[1]), _read(match[2])))
        at = match.end()
    return tuple(pairs)


def write_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Return pairs as `read_pairs` reads them."""
    return ",".join(f"{write_name(old)}:{write_name(new)}" for old, new in pairs)


def write_name(name: str) -> str:
    """Return a name in quotes where `read_pairs` asks for them."""
    return name if _NEEDS_NO_QUOTES.fullmatch(name) else '"{}"'.format(name.replace('"', '""'))


def check_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse pairs of which a name is empty, or that rename a class twice.

    Raises:
        UsageError: If it is so.
    """
    if not pairs or not all(map(all, pairs)):
        raise UsageError(f"the key `{MAP}` has an empty name", hint=f"write `{MAP}=OLD:NEW`, or leave it out")
    twice = first_twice(old for old, _ in pairs)
    if twice is not None:
        raise UsageError(f"`{MAP}={write_pairs(pairs)}`: renames the class `{twice}` twice")


def first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that stands twice, or None."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def _read(text: str) -> str:
    return normal(text[1:-1].replace('""', '"') if text.startswith('"') else text)
