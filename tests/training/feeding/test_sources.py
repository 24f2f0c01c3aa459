"""Training batches of texts: the rules of `test_feed`, and padding independent of pieces."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.open_dataset import open_items
from hydractl.errors import UsageError
from hydractl.training.accelerator import Share
from hydractl.training.feeding import ItemFeed
from support.reviews import reviews, tokenization

ALL = Share(0, 1, 1)


@pytest.fixture
def feed_of(tmp_path):
    texts = open_items(str(reviews(tmp_path / "t.jsonl", 50, seed=0)), tokenization())

    def make(*, augment=(), seed=0):
        return ItemFeed.open(texts, texts.labels, tokenization(), augment=augment, batch_size=16, seed=seed)

    return make


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(a.labels, b.labels)
        and a.inputs.keys() == b.inputs.keys()
        and all(torch.equal(a.inputs[n], b.inputs[n]) for n in a.inputs)
        for s, t in zip(left, right, strict=True)
        for a, b in zip(s, t, strict=True)
    )


def test_beginning_in_the_middle_gives_the_same_steps(feed_of):
    assert feed_of().steps_per_epoch == 4
    assert same(list(feed_of().steps(0, 11, ALL))[6:], list(feed_of().steps(6, 11, ALL)))


@pytest.mark.parametrize(("world", "pieces"), [(2, 1), (3, 2), (1, 5), (40, 1)])
def test_shares_make_up_the_batch(feed_of, world, pieces):
    shares = [
        list(feed_of().steps(2, 6, Share(rank * pieces, pieces, world * pieces))) for rank in range(world)
    ]
    for whole, parts in zip(feed_of().steps(2, 6, ALL), zip(*shares, strict=True), strict=True):
        counted = [piece for part in parts for piece in part if piece.weight]

        for name, tensor in whole[0].inputs.items():
            assert torch.equal(torch.cat([p.inputs[name] for p in counted]), tensor)
        assert torch.equal(torch.cat([p.labels for p in counted]), whole[0].labels)


def test_an_epoch_holds_every_sample_once(feed_of):
    labels = torch.cat([piece.labels for pieces in feed_of().steps(0, 4, ALL) for piece in pieces])

    assert labels.sort().values.tolist() == sorted(feed_of().labels.tolist())


def test_epochs_and_seeds_differ(feed_of):
    first = list(feed_of().steps(0, 1, ALL))

    assert not same(first, list(feed_of().steps(4, 5, ALL)))
    assert not same(first, list(feed_of(seed=1).steps(0, 1, ALL)))


def test_texts_are_not_augmented(feed_of):
    with pytest.raises(UsageError, match="`--augment flip` is for images"):
        feed_of(augment=("flip",))
