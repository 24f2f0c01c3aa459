"""Texts that need no download: reviews out of a seeded grammar, pages of the Python manual, and random letters.

A review has two or three clauses. A clause says something good or bad of one thing, strongly or weakly, perhaps with a negation
that turns it round; what follows `but` counts double, what follows `although` half. The sign of the sum, or else of the last
clause, decides whether the review is negative or positive. One label in thirty is another reader's, so nothing reads all reviews right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from hydractl.data.datasets import TextSet
from hydractl.data.reference import DataRef
from hydractl.data.toys.builtin import SPLITS
from hydractl.errors import DataError
from hydractl.messages import did_you_mean

COUNTS: Mapping[str, int] = MappingProxyType(dict(zip(SPLITS, (8000, 600, 1000), strict=True)))
"""Number of film reviews per split."""
OPINIONS = ("negative", "positive")
OF_A_DOMAIN = 600
LETTERS = 600
NOISE = 1 / 30

GOOD = {
    1.0: ("decent", "pleasant", "solid", "fine", "likeable", "fair", "neat", "enjoyable", "charming", "clever"),
    2.0: ("superb", "brilliant", "excellent", "wonderful", "outstanding", "perfect", "stunning", "flawless"),
}  # fmt: skip
BAD = {
    1.0: ("dull", "weak", "flat", "bland", "clumsy", "tired", "uneven", "slow", "thin", "shallow"),
    2.0: ("awful", "terrible", "dreadful", "horrible", "unbearable", "atrocious", "miserable", "disastrous"),
}
NEGATIONS = ("not", "hardly", "never", "anything but", "far from")
DEGREES = ("", "", "", "rather", "truly", "quite")
LINKS = {"and": 1.0, "but": 2.0, "while": 1.0, "although": 0.5}
VERBS = ("was", "is", "seemed", "felt", "turned out", "remained")
OPENINGS = (
    "", "", "", "overall", "in the end", "to be honest", "for me", "all things considered", "this time",
)  # fmt: skip
SUBJECTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "films": ("plot", "acting", "script", "ending", "camera work", "music", "cast", "dialogue", "pace", "hero",
                  "villain", "opening scene", "humour", "story", "director", "costumes"),
        "gadgets": ("battery", "screen", "keyboard", "charger", "software", "speaker", "case", "price", "update", "cable"),
        "restaurants": ("soup", "waiter", "dessert", "wine list", "table", "bread", "kitchen", "menu", "bill", "sauce"),
        "hotels": ("room", "bed", "breakfast", "pool", "lobby", "view", "shower", "staff", "lift", "towels"),
    }
)  # fmt: skip
FILMS = "films"
"""Domain that has splits; each other domain is one set."""


def open_reviews(ref: DataRef) -> TextSet:
    """Return the reviews of a domain, of films with their splits.

    Raises:
        DataError: If there is no such domain or split.
    """
    domain = ref.domain or FILMS
    if domain not in SUBJECTS:
        raise DataError(
            f"`reviews` has no domain `{domain}`; it has {', '.join(SUBJECTS)}",
            hint=did_you_mean(domain, SUBJECTS),
        )
    if ref.split is not None and (domain != FILMS or ref.split not in COUNTS):
        raise DataError(
            f"`reviews` of {domain} has no split `{ref.split}`",
            hint=f"films have {', '.join(COUNTS)}; other domains have none",
        )
    splits = ([ref.split] if ref.split else list(COUNTS)) if domain == FILMS else [None]
    labelled_texts = [
        review(domain, split, index)
        for split in splits
        for index in range(COUNTS[split] if split else OF_A_DOMAIN)
    ]
    return TextSet(
        texts=tuple(text for text, _ in labelled_texts),
        name="reviews",
        class_names=OPINIONS,
        labels=tuple(label for _, label in labelled_texts),
    )


def open_manual(_ref: DataRef) -> TextSet:
    """Return sentences of the language reference that Python ships, without labels; each Python has its own.

    Raises:
        DataError: If this Python came without it.
    """
    return TextSet(texts=_manual(), name="manual")


def open_letters(ref: DataRef) -> TextSet:
    """Return sentences of random letters, without labels; a function of `seed` alone."""
    draw = random.Random(f"letters-{ref.seed or 0}")  # noqa: S311 - reproducible, not secret
    alphabet = "abcdefghijklmnopqrstuvwxyz"

    def word() -> str:
        return "".join(_pick(draw, alphabet) for _ in range(2 + int(draw.random() * 8)))

    texts = (
        " ".join(word() for _ in range(5 + int(draw.random() * 12))) for _ in range(ref.limit or LETTERS)
    )
    return TextSet(texts=tuple(texts), name="letters")


def review(domain: str, split: str | None, index: int) -> tuple[str, int]:
    """Return one review and its class, a function of the arguments alone."""
    draw = random.Random(f"review-{domain}-{split}-{index}")  # noqa: S311 - as above
    opening = _pick(draw, OPENINGS)
    subjects = list(SUBJECTS[domain])
    total, last, text = 0.0, 0.0, f"{opening} , " if opening else ""
    for clause in range(2 + (draw.random() < 0.2)):
        link = "" if clause == 0 else _pick(draw, tuple(LINKS))
        subject = subjects.pop(int(draw.random() * len(subjects)))
        words, value = _judgement(draw)
        total, last = total + value * LINKS.get(link, 1.0), value
        text += f"{link} the {subject} {words} " if link else f"the {subject} {words} "
    label = int((total or last) > 0)
    if draw.random() < NOISE:
        label = 1 - label
    return f"{text}.".replace(" ,", ",").replace(" .", "."), label


def vocabulary() -> tuple[str, ...]:
    """Return the words of the reviews of films, sorted: what a tokenizer for them knows."""
    phrases = (*GOOD.values(), *BAD.values(), NEGATIONS, DEGREES, LINKS, VERBS, OPENINGS, SUBJECTS[FILMS])
    words = {word for options in phrases for option in options for word in option.split()}
    return tuple(sorted(words | {"the", ",", "."}))


def _judgement(draw: random.Random) -> tuple[str, float]:
    """Return what is said of a thing, and how good that is."""
    sign = 1.0 if draw.random() < 0.5 else -1.0
    strength = 1.0 if draw.random() < 0.5 else 2.0
    adjective = _pick(draw, (GOOD if sign > 0 else BAD)[strength])
    value = sign * strength
    words = f"{_pick(draw, DEGREES)} {adjective}".strip()
    if draw.random() < 0.2:
        words, value = f"{_pick(draw, NEGATIONS)} {words}", -value
    return f"{_pick(draw, VERBS)} {words}", value


def _pick(draw: random.Random, options: Sequence[str]) -> str:
    """Return one of some options; `Random.choice` may draw otherwise in another Python."""
    return options[int(draw.random() * len(options))]


@lru_cache(maxsize=1)
def _manual() -> tuple[str, ...]:
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte that few need
    except ImportError as error:
        raise DataError(
            "`manual`: this Python has no language reference (`pydoc_data.topics`)",
            hint="use `letters`, or your own texts",
        ) from error
    sentences: list[str] = []
    for name in sorted(topics):
        prose = re.sub(r"\s+", " ", re.sub(r"[*\"`]", "", topics[name]))
        sentences += [s.strip() for s in re.split(r"(?<=[a-z]\.) ", prose)]
    selected = (s for s in sentences if 30 <= len(s) <= 200 and re.fullmatch(r"[A-Z][A-Za-z ,;'()-]*\.", s))
    return tuple(dict.fromkeys(selected))  # topics overlap
