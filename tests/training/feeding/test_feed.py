"""Training batches do not depend on the number of processes or on the first step."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.open_dataset import open_data
from hydractl.errors import UsageError
from hydractl.manifest.header import Preprocess
from hydractl.training.accelerator import Share
from hydractl.training.feeding import ItemFeed

PREPROCESS = Preprocess(input_size=(1, 8, 8), mean=(0.5,), std=(0.5,))
ALL = Share(0, 1, 1)
AUGMENTS = [(), ("shift",), ("flip", "shift"), ("rrc", "flip")]


def feed_of(augment=(), *, batch_size=16, seed=0):
    images = open_data("digits::split=train,limit=50")
    return ItemFeed.open(images, images.labels, PREPROCESS, augment=augment, batch_size=batch_size, seed=seed)


def seen(feed, start, stop, share=ALL):
    return [[(p.inputs, p.labels, p.weight) for p in pieces] for pieces in feed.steps(start, stop, share)]


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and a[2] == b[2]
        for s, t in zip(left, right, strict=True)
        for a, b in zip(s, t, strict=True)
    )


@pytest.mark.parametrize("augment", AUGMENTS)
def test_beginning_in_the_middle_gives_the_same_steps(augment):
    feed = feed_of(augment)

    assert feed.steps_per_epoch == 4
    assert same(seen(feed, 0, 11)[6:], seen(feed_of(augment), 6, 11))


@pytest.mark.spread(cases=5)
@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize(("world", "pieces"), [(2, 1), (3, 2), (1, 5), (40, 1)])
def test_shares_make_up_the_batch(augment, world, pieces):
    feed = feed_of(augment)
    shares = [list(feed.steps(2, 6, Share(rank * pieces, pieces, world * pieces))) for rank in range(world)]
    for whole, parts in zip(feed.steps(2, 6, ALL), zip(*shares, strict=True), strict=True):
        flat = [piece for part in parts for piece in part]
        counted = [piece for piece in flat if piece.weight]

        assert torch.equal(torch.cat([p.inputs for p in counted]), whole[0].inputs)
        assert torch.equal(torch.cat([p.labels for p in counted]), whole[0].labels)
        assert sum(p.weight for p in flat) == pytest.approx(1)
        assert all(len(p.inputs) == len(p.labels) >= 1 for p in flat)
        assert all(p.first + len(p.labels) <= p.total == len(whole[0].labels) for p in flat)


def test_an_epoch_holds_every_sample_once():
    feed = feed_of()
    labels = torch.cat([piece.labels for pieces in feed.steps(0, 4, ALL) for piece in pieces])

    assert labels.sort().values.tolist() == sorted(feed.labels.tolist())
    assert [len(pieces[0].labels) for pieces in feed.steps(0, 4, ALL)] == [16, 16, 16, 2]


def test_inputs_go_with_their_labels():
    feed = feed_of()
    whole = {
        tuple(x.flatten().tolist()): y
        for x, y in zip(feed.source.cached_inputs, feed.labels.tolist(), strict=True)
    }

    for pieces in feed.steps(0, 4, ALL):
        for x, y in zip(pieces[0].inputs, pieces[0].labels.tolist(), strict=True):
            assert whole[tuple(x.flatten().tolist())] == y


@pytest.mark.parametrize("augment", AUGMENTS)
def test_epochs_and_seeds_differ(augment):
    assert not same(seen(feed_of(augment), 0, 1), seen(feed_of(augment), 4, 5))
    assert not same(seen(feed_of(augment), 0, 1), seen(feed_of(augment, seed=1), 0, 1))


def test_what_is_held_does_not_change():
    feed = feed_of(("shift", "flip"))
    before = feed.source.cached_inputs.clone()

    seen(feed, 0, 8)

    assert torch.equal(feed.source.cached_inputs, before)


def test_unknown_augmentation():
    with pytest.raises(UsageError, match="blur"):
        feed_of(("blur",))
