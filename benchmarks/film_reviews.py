"""Generated reviews with an opinion, as tables of texts, and a tokenizer for their words."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

PADDING, UNKNOWN, FIRST, LAST = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
OPINIONS = ("negative", "positive")
NOISE = 1 / 30
"""Share of reviews with the wrong label. Chosen by hand; doubling it lowers the best possible accuracy from
97 to 93 %."""

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
SETS: Mapping[str, tuple[str, str | None, int]] = MappingProxyType(
    {
        "train": (FILMS, "train", 8000),
        "val": (FILMS, "val", 600),
        "test": (FILMS, "test", 1000),
        "gadgets": ("gadgets", None, 600),
        "restaurants": ("restaurants", None, 600),
        "hotels": ("hotels", None, 600),
    }
)
"""Domain, split and number of reviews of each table."""


def write_reviews(out: Path) -> None:
    """Write a table `NAME.jsonl` for each of `SETS`, and `tokenizer.json`."""
    for name, (domain, split, count) in SETS.items():
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for index in range(count):
                text, label = review(domain, split, index)
                print(json.dumps({"text": text, "label": OPINIONS[label]}), file=file)
    write_tokenizer(out / "tokenizer.json")


def write_tokenizer(path: Path) -> None:
    """Write a tokenizer with one token per word of the film reviews. Other words are spelled."""
    ids = {word: i for i, word in enumerate(tokens())}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}",
        pair=f"{FIRST} $A {LAST} $B:1 {LAST}:1",
        special_tokens=[(word, ids[word]) for word in (FIRST, LAST)],
    )
    tokenizer.save(str(path))


def tokens() -> tuple[str, ...]:
    """Return all tokens in the order of ids: special tokens, words of the reviews, and single letters."""
    letters = (*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase))
    return (*SPECIAL, *dict.fromkeys((*vocabulary(), *letters)))


def review(domain: str, split: str | None, index: int) -> tuple[str, int]:
    """Return a review and the class of its opinion, determined by the arguments.

    A review has two or three clauses. A clause contains a positive or negative, weak or strong opinion about
    a subject, sometimes reversed by a negation. A clause after `but` counts double, a clause after `although`
    half. The class is the sign of the sum, or of the last clause if the sum is 0. One label in thirty is
    flipped, so no model answers all reviews correctly.

    Args:
        domain: Key of `SUBJECTS`.
        split: Split of films. None for other domains.
        index: Number of the review.

    Returns:
        The text, and 0 for negative or 1 for positive.
    """
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
    """Return the sorted words of film reviews, the vocabulary of a tokenizer for reviews."""
    phrases = (*GOOD.values(), *BAD.values(), NEGATIONS, DEGREES, LINKS, VERBS, OPENINGS, SUBJECTS[FILMS])
    words = {word for options in phrases for option in options for word in option.split()}
    return tuple(sorted(words | {"the", ",", "."}))


def _judgement(draw: random.Random) -> tuple[str, float]:
    """Return a random opinion and its value: positive for good, larger for stronger opinions."""
    sign = 1.0 if draw.random() < 0.5 else -1.0
    strength = 1.0 if draw.random() < 0.5 else 2.0
    adjective = _pick(draw, (GOOD if sign > 0 else BAD)[strength])
    value = sign * strength
    words = f"{_pick(draw, DEGREES)} {adjective}".strip()
    if draw.random() < 0.2:
        words, value = f"{_pick(draw, NEGATIONS)} {words}", -value
    return f"{_pick(draw, VERBS)} {words}", value


def _pick(draw: random.Random, options: Sequence[str]) -> str:
    """Return a random option. `Random.choice` may change between versions of Python."""
    return options[int(draw.random() * len(options))]
