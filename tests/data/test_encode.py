"""Evaluation batches for any model: `eval_batches`, limits of text lengths, and unreadable images."""

from __future__ import annotations

import shutil

import pytest
import torch

from hydractl.data.batches import (
    BatchShare,
    check_augment,
    check_readable_by,
    eval_batches,
    with_max_length,
    with_shorter_texts,
)
from hydractl.data.datasets import Content, ImageSet, TextSet, content_of, of_kind
from hydractl.data.open_dataset import open_items
from hydractl.errors import CheckpointError, DataError, UsageError
from hydractl.manifest.header import Preprocess
from support.pictures import digits_folder, unreadable
from support.reviews import MAX_LENGTH, reviews, tokenization

GREY = Preprocess(input_size=(1, 8, 8), mean=(0.0,), std=(1.0,))


def test_the_model_says_what_is_opened(tmp_path):
    path = reviews(tmp_path / "t.jsonl", 5, seed=0)

    assert open_items(str(path), tokenization()).content == content_of(tokenization()) == Content.TEXTS
    assert open_items("digits::limit=5", GREY).content == content_of(GREY) == Content.IMAGES


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_batches_know_their_items(tmp_path, batch_size):
    texts = open_items(str(reviews(tmp_path / "t.jsonl", 20, seed=0)), tokenization())
    whole = {i: eval_batches(texts, tokenization(), batch_size=1, indices=[i]) for i in range(20)}

    for batch in eval_batches(texts, tokenization(), batch_size=batch_size):
        for row, i in enumerate(batch.indices.tolist()):
            (alone,) = whole[i]
            kept = batch.inputs["attention_mask"][row].bool()
            assert torch.equal(batch.inputs["input_ids"][row][kept], alone.inputs["input_ids"][0])
            assert not batch.inputs["input_ids"][row][~kept].any()


def test_some_items_only(tmp_path):
    texts = open_items(str(reviews(tmp_path / "t.jsonl", 20, seed=0)), tokenization())
    found = [
        b.indices
        for b in eval_batches(texts, tokenization(), batch_size=3, indices=torch.tensor([7, 2, 9, 2]))
    ]

    assert sorted(torch.cat(found).tolist()) == [2, 2, 7, 9]
    with pytest.raises(ValueError, match=r"outside 0\.\.19"):
        eval_batches(texts, tokenization(), batch_size=3, indices=[20])
    with pytest.raises(ValueError, match="batch_size is 0"):
        eval_batches(texts, tokenization(), batch_size=0)


def test_texts_come_as_given_where_that_is_wanted(tmp_path):
    texts = open_items(str(reviews(tmp_path / "t.jsonl", 20, seed=0)), tokenization())
    chosen = [7, 2, 9, 2, 11, 0, 4]

    whole = eval_batches(texts, tokenization(), batch_size=3, batch_share=BatchShare(as_given=True))
    some = eval_batches(
        texts, tokenization(), batch_size=3, indices=chosen, batch_share=BatchShare(1, 2, as_given=True)
    )

    assert torch.equal(torch.cat([b.indices for b in whole]), torch.arange(20))
    assert [b.indices.tolist() for b in some] == [[2, 11, 0]]


@pytest.mark.parametrize(("padding", "at_most", "expected"), [
    ("longest", None, 24), ("longest", 10, 10), ("longest", 128, 24), ("max_length", 10, 24),
])  # fmt: skip
def test_a_recipe_shortens_texts_of_models_that_read_more(padding, at_most, expected):
    preprocess = tokenization(padding=padding)

    assert with_shorter_texts(preprocess, at_most) == preprocess.model_copy(update={"max_length": expected})
    assert with_shorter_texts(GREY, at_most) is GREY


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("chosen", [None, [7, 2, 9, 2, 11, 0, 4]])
@pytest.mark.parametrize("texts", [True, False])
def test_what_is_dealt_out_is_each_batch_once_as_it_was(tmp_path, world, chosen, texts):
    preprocess = tokenization() if texts else GREY
    items = open_items(
        str(reviews(tmp_path / "t.jsonl", 20, seed=0)) if texts else "digits::limit=20", preprocess
    )
    whole = list(eval_batches(items, preprocess, batch_size=3, indices=chosen))

    dealt = [
        list(
            eval_batches(items, preprocess, batch_size=3, indices=chosen, batch_share=BatchShare(rank, world))
        )
        for rank in range(world)
    ]

    assert sum(map(len, dealt)) == len(whole)
    for i, batch in enumerate(whole):
        found = dealt[i % world][i // world]
        assert torch.equal(found.indices, batch.indices)
        for a, b in zip(_tensors(found.inputs), _tensors(batch.inputs), strict=True):
            assert torch.equal(a, b)


def _tensors(inputs):
    return [inputs] if isinstance(inputs, torch.Tensor) else [inputs[name] for name in sorted(inputs)]


def test_texts_can_be_cut_shorter_but_not_longer():
    assert with_max_length(tokenization(), 8, model="m").max_length == 8
    assert with_max_length(tokenization(), None, model="m") == tokenization()
    for length in (0, MAX_LENGTH + 1):
        with pytest.raises(UsageError, match=f"`--max-length {length}`: m reads at least 1 and at most 24"):
            with_max_length(tokenization(), length, model="m")
    with pytest.raises(UsageError, match="`--max-length 8`: m reads only texts of 24 tokens"):
        with_max_length(tokenization(padding="max_length"), 8, model="m")
    with pytest.raises(UsageError, match="`--max-length` is for texts, but m reads images"):
        with_max_length(GREY, 8, model="m")


def test_a_model_that_can_read_nothing():
    with pytest.raises(CheckpointError, match="m: is a text model without a tokenizer"):
        check_readable_by(tokenization(tokenizer=None), model="m")
    check_readable_by(tokenization(), model="m")
    check_readable_by(GREY, model="m")


def test_augmentations_are_for_images():
    with pytest.raises(UsageError, match="`--augment flip,shift` is for images, but the model reads texts"):
        check_augment(tokenization(), ("flip", "shift"))
    with pytest.raises(UsageError, match="unknown augmentation `blur`"):
        check_augment(GREY, ("blur",))
    check_augment(tokenization(), ())
    check_augment(GREY, ("flip",))


def test_images_that_cannot_be_read_are_left_out(tmp_path, progress_log):
    whole = open_items(str(digits_folder(tmp_path / "d", "digits::limit=40")), GREY, skip_bad=True)
    assert not progress_log.warnings
    unreadable(tmp_path / "d" / "3")

    found = open_items(f"{tmp_path}/d", GREY, skip_bad=True)

    assert (found.labels, found.fingerprint()) == (whole.labels, whole.fingerprint())
    first = f"{tmp_path}/d/3/000-none.png: is not an image that can be decoded"
    assert progress_log.warnings == [f"d: skipped 3 of 43 images, which are unreadable; the first is {first}"]
    shutil.rmtree(tmp_path / "d")
    (tmp_path / "d" / "3").mkdir(parents=True)
    unreadable(tmp_path / "d" / "3")
    with pytest.raises(DataError, match=r"d: all images are unreadable; the first is .*000-none\.png"):
        open_items(f"{tmp_path}/d", GREY, skip_bad=True)
    with pytest.raises(UsageError, match="`--skip-bad` is for images"):
        open_items("intents", tokenization(), skip_bad=True)


def test_items_of_the_other_kind(tmp_path):
    texts = open_items(str(reviews(tmp_path / "t.jsonl", 2, seed=0)), tokenization())

    with pytest.raises(DataError, match=r"t\.jsonl: contains texts, but the model reads images"):
        of_kind(texts, ImageSet)
    with pytest.raises(DataError, match="noise: contains images, but the model reads texts"):
        of_kind(open_items("noise", GREY), TextSet)
