"""What the demo on texts makes before its commands run."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer

from hydractl.cli.commands.demo import text as demo_text
from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.tokenize import encode_texts
from hydractl.errors import OutputError
from hydractl.families.load import open_model

UNKNOWN = 1


@pytest.fixture
def tokenizer(tmp_path):
    demo_text.prepare(tmp_path, 0, lambda _: None)
    return Tokenizer.from_file(str(tmp_path / demo_text.TOKENIZER))


def test_it_is_the_same_bytes_every_time_and_says_so(tmp_path):
    said = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        demo_text.prepare(tmp_path / folder, len(said), said.append)

    assert (tmp_path / "one/tokenizer.json").read_bytes() == (tmp_path / "two/tokenizer.json").read_bytes()
    assert f"{len(demo_text.vocabulary())} tokens" in said[0]


def test_ids_count_up_from_the_padding(tokenizer):
    assert [tokenizer.id_to_token(i) for i in range(len(demo_text.vocabulary()))] == [*demo_text.vocabulary()]
    assert tokenizer.token_to_id("[PAD]") == 0
    assert len(set(demo_text.vocabulary())) == tokenizer.get_vocab_size()


def test_a_word_of_the_films_is_one_token(tokenizer):
    for text in open_data("reviews::split=val", content=Content.TEXTS).texts:
        words = re.findall(r"[a-z]+|[.,]", text)
        assert tokenizer.encode(text.upper()).tokens == ["[CLS]", *words, "[SEP]"]


@pytest.mark.parametrize("ref", ["reviews::domain=hotels", "reviews::domain=gadgets", "letters::limit=50"])
def test_another_word_is_spelt(tokenizer, ref):
    for text in open_data(ref, content=Content.TEXTS).texts:
        found = tokenizer.encode(text)
        assert UNKNOWN not in found.ids
        assert "".join(found.tokens[1:-1]).replace("##", "") == re.sub("[^a-z.,]", "", text)


def test_a_pair_has_two_segments(tokenizer):
    found = tokenizer.encode("the plot", "the cast")

    assert found.tokens == ["[CLS]", "the", "plot", "[SEP]", "the", "cast", "[SEP]"]
    assert found.type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_the_base_reads_every_text(tokenizer, tmp_path):
    base = demo_text.plan(tmp_path, 0)[0].commands[0][1]
    how = open_model(base).header.preprocess

    assert (how.vocab_size, how.pad_id) == (len(demo_text.vocabulary()), 0)
    longest = {
        ref: encode_texts(open_data(ref, content=Content.TEXTS).texts, how)["input_ids"].shape[1]
        for ref in ("reviews::split=train,limit=500", "reviews::domain=restaurants", "manual::limit=50")
    }
    assert (
        max(longest["reviews::split=train,limit=500"], longest["reviews::domain=restaurants"])
        < how.max_length
    )
    assert longest["manual::limit=50"] == how.max_length == demo_text.MAX_LENGTH


def test_heads_are_enough_for_the_budgets():
    layers, heads = (
        int(re.search(rf"{key}=(\d+)", demo_text.REVIEWS.architecture)[1])
        for key in ("num_hidden_layers", "num_attention_heads")
    )

    assert demo_text.REVIEWS.removed < demo_text.REVIEWS.pool < layers * heads
    assert demo_text.REVIEWS.kept_per_layer < heads


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(OutputError, match=r"tokenizer\.json: cannot be written"):
        demo_text.prepare(tmp_path / "nowhere", 0, lambda _: None)
