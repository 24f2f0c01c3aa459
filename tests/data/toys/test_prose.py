"""Built-in texts.

An independent parser, which shares only words with the generator, checks the labels of reviews.
"""

from __future__ import annotations

import re
import sys

import pytest

from hydractl.data import toys
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, UsageError

SPLITS = ("train", "val", "test")
OTHERS = ("gadgets", "hotels", "restaurants")
WORDS = {
    1: "decent pleasant solid fine likeable fair neat enjoyable charming clever",
    2: "superb brilliant excellent wonderful outstanding perfect stunning flawless",
    -1: "dull weak flat bland clumsy tired uneven slow thin shallow",
    -2: "awful terrible dreadful horrible unbearable atrocious miserable disastrous",
}
STRENGTH = {word: value for value, words in WORDS.items() for word in words.split()}
WEIGHT = {"": 1, "and": 1, "while": 1, "but": 2, "although": 0.5}
TURNED = re.compile(r"\b(?:not|hardly|never|anything but|far from)\b")
LINK = re.compile(r"(and|but|while|although) (?=the )")


def texts(ref):
    return open_data(ref, content=Content.TEXTS)


def read(review):
    """Return the class implied by the words of a review."""
    assert review.endswith(".")
    parts = LINK.split(review.rstrip("."))
    values = []
    for link, clause in zip(["", *parts[1::2]], parts[::2], strict=True):
        (judged,) = (STRENGTH[word] for word in clause.split() if word in STRENGTH)
        values.append(WEIGHT[link] * (-judged if TURNED.search(clause) else judged))
    return int((sum(values) or values[-1]) > 0)


@pytest.mark.parametrize(
    ("review", "label"),
    [
        ("the plot was dull and the cast was superb.", 1),
        ("the plot was superb but the cast was awful.", 0),
        ("the plot was superb although the cast was awful.", 1),
        ("the plot was anything but superb while the cast is quite dull.", 0),
        ("overall, the plot was far from awful although the cast was never truly awful.", 1),
        ("the plot was superb and the cast was awful.", 0),
        ("the plot was dull but the cast was fine and the hero is dull.", 0),
    ],
)
def test_the_reader(review, label):
    assert read(review) == label


@pytest.mark.parametrize("source", [*(f"split={s}" for s in SPLITS), *(f"domain={d}" for d in OTHERS)])
def test_labels_follow_the_rule_but_for_one_in_thirty(source):
    found = texts(f"reviews::{source}")
    wrong = sum(read(text) != label for text, label in zip(found.texts, found.labels, strict=True))

    assert found.class_names == ("negative", "positive")
    assert 0.4 * len(found) / 30 < wrong < 1.6 * len(found) / 30


def test_labels_follow_the_rule_where_there_is_no_noise(monkeypatch):
    noisy = texts("reviews::split=val")
    monkeypatch.setattr(toys, "NOISE", 0.0)
    clean = texts("reviews::split=val")

    assert clean.texts == noisy.texts
    assert clean.labels == tuple(map(read, clean.texts))


@pytest.mark.parametrize("source", ["reviews::split=test", "reviews::domain=hotels", "manual", "letters"])
def test_the_same_text_every_time(source):
    assert texts(source).texts == texts(source).texts
    assert len(set(texts(source).texts)) == len(texts(source))


def test_splits_are_disjoint_and_make_up_the_whole():
    parts = [texts(f"reviews::split={split}") for split in SPLITS]
    whole = texts("reviews")

    assert [len(part) for part in parts] == [8000, 600, 1000]
    assert sum((part.texts for part in parts), ()) == whole.texts == texts("reviews::domain=films").texts
    assert len(set(whole.texts)) == len(whole)


@pytest.mark.parametrize("source", [*(f"split={s}" for s in SPLITS), *(f"domain={d}" for d in OTHERS)])
def test_classes_are_balanced(source):
    found = texts(f"reviews::{source}")

    assert abs(sum(found.labels) / len(found) - 0.5) < 0.04


def test_the_first_words_are_pinned():
    # a change here changes all published numbers
    assert texts("reviews::split=test").texts[0] == (
        "all things considered, the dialogue remained truly perfect and the hero turned out never shallow."
    )
    assert texts("reviews::split=train").texts[1] == (
        "the camera work is hardly quite weak and the ending turned out dull."
    )
    assert texts("letters::limit=1").texts == (
        "kzymqezy geabrati bfil bis ihsoxtnl bsyiibkt kntkjw byiiajim",
    )


@pytest.mark.parametrize("domain", OTHERS)
def test_domains_share_their_judgements_but_not_their_things(domain):
    known = set(toys.vocabulary())
    things = {word for thing in toys.SUBJECTS[domain] for word in thing.split()}
    words = {w for text in texts(f"reviews::domain={domain}").texts for w in re.findall(r"[a-z]+|[.,]", text)}

    assert words - things <= known
    assert not things & known


def test_the_vocabulary_is_the_words_of_the_films():
    words = {w for text in texts("reviews").texts for w in re.findall(r"[a-z]+|[.,]", text)}

    assert toys.vocabulary() == tuple(sorted(words))


def test_a_selection_is_of_classes_then_of_so_many():
    found = texts("reviews::domain=hotels,classes=positive,limit=100")

    assert (len(found), found.class_names, set(found.labels)) == (100, ("positive",), {0})
    assert sum(map(read, found.texts)) > 90


def test_letters_are_drawn_from_their_seed():
    assert texts("letters").texts == texts("letters::seed=0").texts
    assert not set(texts("letters").texts) & set(texts("letters::seed=1").texts)
    assert texts("letters::limit=5").texts == texts("letters::limit=900").texts[:5]
    assert all(re.fullmatch(r"[a-z]{2,9}( [a-z]{2,9})+", text) for text in texts("letters").texts)


def test_the_manual_is_whole_sentences():
    found = texts("manual")

    assert len(found) > 300
    assert found.labels is None
    assert all(text[0].isupper() and text.endswith(".") and "  " not in text for text in found.texts)
    assert len(texts("manual::limit=7")) == 7


def test_a_python_without_its_manual(monkeypatch):
    toys._manual.cache_clear()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)

    with pytest.raises(
        DataError, match=r"`manual`: this Python has no language reference \(`pydoc_data\.topics`\)"
    ) as caught:
        texts("manual")
    assert "`letters`" in caught.value.hint


@pytest.mark.parametrize(
    ("ref", "error", "message", "hint"),
    [
        ("reviews::domain=hotel", DataError, "no domain `hotel`; it has films, gadgets", "did you mean `hotels`?"),
        ("reviews::split=dev", DataError, "`reviews` of films has no split `dev`", "train, val, test"),
        ("reviews::domain=hotels,split=test", DataError, "of hotels has no split `test`", "other domains have none"),
        ("reviews::classes=neutral", DataError, "no class `neutral`", ""),
        ("reviews::seed=1", UsageError, "does not take the key `seed`", ""),
        ("manual::split=test", UsageError, "`manual` takes limit", ""),
        ("letters::domain=films", UsageError, "`letters` takes limit, seed", ""),
        ("reviews::image=x", UsageError, "does not take the key `image`", ""),
        ("review", DataError, "no such folder or file", "did you mean `reviews`?"),
        ("nowhere", DataError, "no such folder or file", "`reviews`, `intents`, `manual`, `letters`"),
    ],
)  # fmt: skip
def test_what_is_refused(ref, error, message, hint):
    with pytest.raises(error, match=re.escape(message)) as caught:
        texts(ref)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("source", ["reviews", "manual", "letters"])
def test_texts_are_no_images(source):
    with pytest.raises(DataError, match=f"`{source}` are texts, but the model reads images"):
        open_data(source)
