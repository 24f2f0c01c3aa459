"""Corruptions of texts: slips of the keyboard, words left out or swapped, letters in the other case.

Rates are shares of letters or of words by severity. There is no benchmark of these by severity, as ImageNet-C is one of images; these
definitions are ours.
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
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def corrupted_text(text: str, corruption: Corruption, random: Random) -> str:
    """Return a text as the corruption leaves it; one that nothing befalls is the same to the last blank."""
    return _BY_NAME[corruption.name](text, RATES[corruption.name][corruption.severity - 1], random)


def _typos(text: str, rate: float, random: Random) -> str:
    """Let each letter suffer one of four slips with this chance; of a pair that is swapped the second suffers no other."""
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
    """Leave each word out with this chance, with the blanks behind it, but never all."""
    words = re.findall(r"\s*\S+", text)
    keep_mask = random.random(len(words)) >= rate
    if not len(words) or keep_mask.all():
        return text
    if not keep_mask.any():
        keep_mask[random.integers(len(words))] = True
    return "".join(word for word, keeps_word in zip(words, keep_mask, strict=True) if keeps_word).lstrip()


def _swap(text: str, rate: float, random: Random) -> str:
    """Swap each word with the next with this chance, from the left; none moves twice."""
    parts = re.split(r"(\s+)", text)  # words at even places, what parts them at odd ones
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
    """Change the case of each letter with this chance."""
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
