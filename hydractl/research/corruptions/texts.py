"""Corruptions of texts: typing errors, missing words, swapped words, and letters in the other case.

This project defines these corruptions, because no benchmark has severities for texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from hydractl.research.corruptions.names import Corruption

Random: TypeAlias = np.random.Generator
RATES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "typos": (0.02, 0.04, 0.08, 0.12, 0.16),
        "drop": (0.05, 0.1, 0.15, 0.2, 0.3),
        "swap": (0.05, 0.1, 0.2, 0.3, 0.4),
        "case": (0.05, 0.1, 0.2, 0.3, 0.5),
    }
)
"""Share of letters (`typos`, `case`) or words (`drop`, `swap`) that change, for severities 1 to 5. Chosen by
hand; doubling equals a severity that is one or two steps higher."""
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def corrupted_text(text: str, corruption: Corruption, random: Random) -> str:
    """Return the corrupted text. All spaces stay if no word is dropped.

    Args:
        text: The text.
        corruption: Name from `TEXTS` and severity, for the rates in `RATES`.
        random: Source of the draws.
    """
    return _BY_NAME[corruption.name](text, RATES[corruption.name][corruption.severity - 1], random)


def _typos(text: str, rate: float, random: Random) -> str:
    """Give each letter with probability `rate` a typing error: swap, omission, wrong key or doubling.

    The second letter of a swapped pair gets no further error.
    """
    pieces: list[str] = []
    place = 0
    while place < len(text):
        letter, after = text[place], text[place + 1 : place + 2]
        place += 1
        if not letter.isalpha() or random.random() >= rate:
            pieces.append(letter)
            continue
        slip = random.integers(4)
        if slip == 0 and after.isalpha():
            pieces.append(after + letter)
            place += 1
        elif slip == 1:
            pass
        elif slip == 2 and letter.lower() in NEIGHBOURS:
            near = NEIGHBOURS[letter.lower()]
            mistaken = near[random.integers(len(near))]
            pieces.append(mistaken.upper() if letter.isupper() else mistaken)
        else:
            pieces.append(letter * 2)
    return "".join(pieces)


def _drop(text: str, rate: float, random: Random) -> str:
    """Drop each word and the spaces before it with probability `rate`; a word always remains."""
    words = re.findall(r"\s*\S+", text)
    keep_mask = random.random(len(words)) >= rate
    if not len(words) or keep_mask.all():
        return text
    if not keep_mask.any():
        keep_mask[random.integers(len(words))] = True
    return "".join(word for word, keeps_word in zip(words, keep_mask, strict=True) if keeps_word).lstrip()


def _swap(text: str, rate: float, random: Random) -> str:
    """Swap each word with the next word with probability `rate`, from the left. No word moves twice."""
    parts = re.split(r"(\s+)", text)  # words at even positions, separators at odd positions
    words = [place for place, part in enumerate(parts) if part and not part.isspace()]
    rank = 0
    while rank + 1 < len(words):
        if random.random() < rate:
            first, second = words[rank], words[rank + 1]
            parts[first], parts[second] = parts[second], parts[first]
            rank += 1
        rank += 1
    return "".join(parts)


def _case(text: str, rate: float, random: Random) -> str:
    """Change the case of each letter with probability `rate`."""
    flips = random.random(len(text)) < rate
    return "".join(x.swapcase() if flip else x for x, flip in zip(text, flips, strict=True))


def _neighbours() -> dict[str, str]:
    """Return each letter's neighbours on a QWERTY keyboard, whose rows are offset by half a key."""
    neighbours = {}
    for r, row in enumerate(_ROWS):
        for c, key in enumerate(row):
            near = [row[i] for i in (c - 1, c + 1) if 0 <= i < len(row)]
            near += [_ROWS[r - 1][i] for i in (c, c + 1) if r and i < len(_ROWS[r - 1])]
            near += [_ROWS[r + 1][i] for i in (c - 1, c) if r + 1 < len(_ROWS) and 0 <= i < len(_ROWS[r + 1])]
            neighbours[key] = "".join(near)
    return neighbours


NEIGHBOURS: Mapping[str, str] = MappingProxyType(_neighbours())
_BY_NAME: Mapping[str, Callable[[str, float, Random], str]] = MappingProxyType(
    {"typos": _typos, "drop": _drop, "swap": _swap, "case": _case}
)
