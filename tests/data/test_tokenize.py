"""Tokenization equals transformers with the same tokenizer, for every batch."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hydractl.data import tokenize as tokenize_module
from hydractl.data.batches import TokenBatches
from hydractl.data.tokenize import encode_texts, tokenize
from hydractl.errors import CheckpointError, DataError, UsageError
from hydractl.families.open_model import open_model
from support.reviews import SPECIAL, WORDS, tokenization, tokenizer
from support.text_folders import save_text_model
from support.variants import variant

words = st.sampled_from([*WORDS[4:], "played", "PLAYING", "unheard", "of", "!", "ä"])
texts = st.lists(words, max_size=40).map(" ".join)
items = st.lists(texts, min_size=1, max_size=6) | st.lists(st.tuples(texts, texts), min_size=1, max_size=6)
NAMED = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
LIBRARY = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **NAMED)


@settings(max_examples=60)
@given(items, st.integers(4, 24), st.sampled_from(["longest", "max_length"]))
def test_tokens_are_the_librarys_own(batch, max_length, padding):
    first = [item if isinstance(item, str) else item[0] for item in batch]
    second = None if isinstance(batch[0], str) else [item[1] for item in batch]
    expected = LIBRARY(
        first,
        second,
        truncation=True,
        max_length=max_length,
        padding=padding,
        return_tensors="pt",
        return_token_type_ids=True,
    )

    found = encode_texts(batch, tokenization(max_length=max_length, padding=padding))

    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.dtype == torch.int64


@pytest.mark.parametrize("name", ["transformers-bert-plain", "transformers-roberta-plain"])
def test_a_saved_folder_reads_as_the_library_reads_it(tmp_path, name):
    save_text_model(variant(name), tmp_path)
    preprocess = open_model(str(tmp_path)).header.preprocess
    library = AutoTokenizer.from_pretrained(tmp_path)
    pairs = [("the cat sat", "on a mat"), ("the " * 9, "cat " * 20), ("", "dog")]
    singles = ["the cat sat on the mat", "", "mat " * 40]

    for batch, columns in ((singles, (singles,)), (pairs, tuple(map(list, zip(*pairs, strict=True))))):
        expected = library(*columns, truncation=True, max_length=12, padding=True, return_tensors="pt",
                           return_token_type_ids="token_type_ids" in preprocess.names)  # fmt: skip
        found = encode_texts(batch, preprocess.model_copy(update={"max_length": 12}))
        assert found.keys() == expected.keys()
        assert all(torch.equal(x, expected[n]) for n, x in found.items() if n != "input_ids")
        kept = found["attention_mask"].bool()
        assert torch.equal(found["input_ids"][kept], expected["input_ids"][kept])


def test_only_what_the_model_takes_is_given():
    found = encode_texts(["the film"], tokenization(names=("attention_mask",)))

    assert list(found) == ["input_ids", "attention_mask"]


@settings(max_examples=40)
@given(items, st.randoms())
def test_a_texts_tokens_hang_on_no_other_text(batch, draw):
    whole = tokenize(batch, tokenization())
    order = list(range(len(batch)))
    draw.shuffle(order)
    shuffled = tokenize([batch[i] for i in order], tokenization())

    for place, i in enumerate(order):
        alone = whole.batch(torch.tensor([i]))
        assert all(torch.equal(x, alone[n]) for n, x in shuffled.batch(torch.tensor([place])).items())


@settings(max_examples=40)
@given(items, st.integers(1, 9))
def test_batches_hold_every_text_once_and_pad_no_more_than_they_must(batch, batch_size):
    tokens = tokenize(batch, tokenization())
    batches = TokenBatches.of(tokens, indices=range(len(batch)), batch_size=batch_size)
    found = list(batches)

    assert sorted(torch.cat([b.indices for b in found]).tolist()) == list(range(len(batch)))
    for one, again in zip(found, batches, strict=True):
        assert torch.equal(one.indices, again.indices)
        assert one.inputs["input_ids"].shape[1] == tokens.lengths[one.indices].max()
    lengths = torch.cat([tokens.lengths[b.indices] for b in found])
    assert torch.equal(lengths, lengths.sort(descending=True).values)


@settings(max_examples=40)
@given(items, st.integers(1, 3), st.integers(1, 3))
def test_batches_of_parts_are_those_of_all_that_are_sorted_among_as_many(batch, batch_size, among):
    tokens, size = tokenize(batch, tokenization()), batch_size * among
    whole = TokenBatches.of(tokens, indices=range(len(batch)), batch_size=batch_size, among=size)
    parts = []
    for begin in range(0, len(batch), size):
        part = tokenize(batch[begin : begin + size], tokenization())
        own = TokenBatches.of(part, indices=range(len(part)), batch_size=batch_size)
        parts += [one._replace(indices=one.indices + begin) for one in own]

    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert all(torch.equal(one.inputs[name], x) for name, x in other.inputs.items())


def test_texts_of_one_length_keep_their_order():
    tokens = tokenize(["the film"] * 5, tokenization())
    batches = TokenBatches.of(tokens, indices=(3, 1, 4), batch_size=2)

    assert [b.indices.tolist() for b in batches] == [[3, 1], [4]]
    assert list(TokenBatches.of(tokens, indices=(), batch_size=2)) == []


def test_more_texts_than_are_tokenised_at_once(monkeypatch):
    many = [" ".join(["very"] * (i % 7)) for i in range(50)]
    whole = encode_texts(many, tokenization())
    monkeypatch.setattr("hydractl.data.tokenize.CHUNK", 8)

    assert all(torch.equal(x, whole[name]) for name, x in encode_texts(many, tokenization()).items())


class Spy:
    """Tokenizer that records the lengths of its input texts."""

    def __init__(self, made):
        self.made, self.lengths = made, []

    def __getattr__(self, name):
        return getattr(self.made, name)

    def encode_batch_fast(self, texts):
        self.lengths += [len(part) for text in texts for part in ([text] if isinstance(text, str) else text)]
        return self.made.encode_batch_fast(texts)


SENTENCE, BLANKS = "the film was very great ", " " * 200_000
LONG = SENTENCE * 20_000


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("text", "short", "all_read"),
    [
        (LONG, SENTENCE * 9, False),
        ((LONG, "the phone"), (SENTENCE * 9, "the phone"), False),
        ((LONG, LONG + "bad"), (SENTENCE * 9, SENTENCE * 9 + "bad"), False),
        ("bad" + BLANKS + "great", "bad great", True),
        (BLANKS + LONG + BLANKS, SENTENCE * 9, True),
        ("x" * 300_000, "x" * 300, True),
    ],
    ids=["words", "a short second", "a long second", "blanks", "surrounding spaces", "one word"],
)
def test_long_texts_are_cut_before_they_are_tokenised(monkeypatch, text, short, all_read, side):
    """The library is too slow for whole texts, quadratic for pairs.

    `short` has the same tokens at its ends.
    """
    preprocess = tokenization(max_length=15, truncation_side=side)
    monkeypatch.setattr(LIBRARY, "truncation_side", side)
    expected = LIBRARY(*([short] if isinstance(short, str) else short), truncation=True, max_length=15)
    spy = Spy(tokenize_module.truncating_tokenizer(preprocess))
    monkeypatch.setattr(tokenize_module, "truncating_tokenizer", lambda _: spy)

    assert encode_texts([text], preprocess)["input_ids"].tolist() == [expected["input_ids"]]
    assert (max(spy.lengths) > 20_000) == all_read


def test_a_model_without_a_tokenizer():
    with pytest.raises(CheckpointError, match="the model: is a text model without a tokenizer") as caught:
        tokenize(["a"], tokenization(tokenizer=None))
    assert "tokenizer=PATH/tokenizer.json" in caught.value.hint


def test_a_tokenizer_that_is_none():
    with pytest.raises(CheckpointError, match="the model's tokenizer cannot be read: "):
        tokenize(["a"], tokenization(tokenizer="{}"))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("!!!", "cannot be read: Precompiled: "),
        ("CAAAAAAAAAAAAAAA", "fails on the data: index out of bounds"),
    ],
    ids=["unreadable", "leads nowhere"],
)
def test_a_tokenizer_that_panics_is_one_error(capfd, table, said):
    document = json.loads(tokenization().tokenizer)
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": table}

    with pytest.raises(CheckpointError, match=f"^the model's tokenizer {said}"):
        tokenize(["a cat"], tokenization(tokenizer=json.dumps(document)))

    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("batch", "special", "hint"), [(["a"], 2, 5), ([("a", "b")], 3, 7)])
def test_no_room_beside_special_tokens(batch, special, hint):
    with pytest.raises(
        UsageError, match=f"{special} tokens leave no room for a text: {special} are"
    ) as caught:
        tokenize(batch, tokenization(max_length=special))
    assert f"`--max-length {hint}`" in caught.value.hint
    assert tokenize(batch, tokenization(max_length=hint)).lengths.tolist() == [2 * special - 1]


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TWICE = {"type": "TemplateProcessing", "single": [TEXT, TEXT], "pair": [TEXT], "special_tokens": {}}
BPE = {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40}}, "expands texts too much"),
        ({"normalizer": DOUBLE | {"content": "a" * 100_000}}, "expands texts too much"),
        ({"normalizer": DOUBLE | {"pattern": {"Regex": ""}, "content": "a" * 10_000}}, "expands texts too much"),
        ({"post_processor": {"type": "Sequence", "processors": [TWICE] * 40}}, "expands texts too much"),
        ({"model": BPE}, "its tokenizer samples tokens at random"),
    ],
    ids=["doubled", "a long replacement", "of nothing", "repeated", "dropout"],
)  # fmt: skip
def test_a_tokenizer_that_makes_far_more_of_a_text_or_draws_is_refused(part, message):
    document = json.loads(tokenizer().to_str()) | part

    with pytest.raises(CheckpointError, match=message):
        tokenize(["a"], tokenization(tokenizer=json.dumps(document)))


def test_another_models_tokenizer():
    with pytest.raises(CheckpointError, match="returns token 15, but the model has tokens 0 to 9") as caught:
        tokenize(["the poor"], tokenization(vocab_size=10))
    assert "vocab_size=" in caught.value.hint


@pytest.mark.parametrize("mark", [2, 300])
def test_a_tokenizer_that_marks_more_parts_than_texts_have(mark):
    """Larger segment ids are out of range for the segment embeddings.

    Models without segments ignore the ids.
    """
    document = json.loads(tokenization().tokenizer)
    document["post_processor"]["single"][0]["SpecialToken"]["type_id"] = mark
    names = ("attention_mask", "token_type_ids")

    with pytest.raises(
        CheckpointError,
        match=("the tokenizer returns segment ids above 1, but an item has at most two texts"),
    ):
        tokenize(["a cat"], tokenization(tokenizer=json.dumps(document), names=names))

    tokenize(["a cat"], tokenization(tokenizer=json.dumps(document), names=names[:1]))


def test_a_text_without_a_token():
    from tokenizers import Tokenizer, models

    bare = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).to_str()  # noqa: S106 - as above

    with pytest.raises(DataError, match="reviews: text 1 has no token"):
        tokenize(["a", ""], tokenization(tokenizer=bare), place="reviews")
