"""Built-in texts without labels: the manual and random letters."""

from __future__ import annotations

import re
import sys

import pytest

from hydractl.data import toys
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.errors import DataError, UsageError


def texts(ref):
    return open_data(ref, content=Content.TEXTS)


@pytest.mark.parametrize("source", ["manual", "letters"])
def test_the_same_text_every_time(source):
    assert texts(source).texts == texts(source).texts
    assert len(set(texts(source).texts)) == len(texts(source))


def test_the_first_words_are_pinned():
    # a change here changes all published numbers
    assert texts("letters::limit=1").texts == (
        "kzymqezy geabrati bfil bis ihsoxtnl bsyiibkt kntkjw byiiajim",
    )


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
        ("manual::split=test", UsageError, "`manual` takes limit", ""),
        ("letters::domain=films", UsageError, "`letters` takes limit, seed", ""),
        ("letters::classes=a", UsageError, "does not take the key `classes`", ""),
        ("manual::image=x", UsageError, "does not take the key `image`", ""),
        ("letter", DataError, "no such folder or file", "did you mean `letters`?"),
        ("nowhere", DataError, "no such folder or file", "`noise`, `intents`, `manual`, `letters`"),
    ],
)  # fmt: skip
def test_what_is_refused(ref, error, message, hint):
    with pytest.raises(error, match=re.escape(message)) as caught:
        texts(ref)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("source", ["manual", "letters"])
def test_texts_are_no_images(source):
    with pytest.raises(DataError, match=f"`{source}` are texts, but the model reads images"):
        open_data(source)
