"""Training on a stream: its rows in an order that needs few of them at once, and the batches that a file of them would give."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.data.encode import open_items, open_stream
from hydractl.data.reference import DataRef
from hydractl.data.sources.stream import ROWS, Shuffled
from hydractl.errors import DataError
from hydractl.families.load import open_model
from hydractl.model_inputs import map_inputs
from hydractl.progress import SILENT
from hydractl.training.accelerator import Share
from hydractl.training.feeding import streamed
from hydractl.training.feeding.feed import ItemFeed
from hydractl.training.feeding.mixup import Mixing
from hydractl.training.feeding.sources import ImageSource
from hydractl.training.feeding.streamed import buffer_order
from support.builders import base
from support.lake import IMAGES, Lake, image, most_held, of_images, of_texts, serve, stored
from support.text_folders import save_text_model
from support.variants import variant

BERT = variant("transformers-bert-plain")
REF = DataRef.parse("hf:org/name::streaming=true,buffer=20", endless=True, buffered=True)
WHOLE = Share(first=0, pieces=1, total=1)


@given(count=st.integers(1, 60), buffer=st.integers(1, 70), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_each_row_comes_once_and_none_before_it_can_be_held(count, buffer, seed, epoch):
    order = buffer_order(count, buffer, seed=seed, epoch=epoch)

    assert sorted(order.tolist()) == [*range(count)]
    assert all(row < place + buffer for place, row in enumerate(order.tolist()))
    assert torch.equal(order, buffer_order(count, buffer, seed=seed, epoch=epoch))
    if buffer == 1:
        assert order.tolist() == [*range(count)]


def test_orders_differ_and_far_rows_meet():
    orders = [
        tuple(buffer_order(200, 50, seed=seed, epoch=epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({*orders}) == 4
    moved = [abs(place - row) for order in orders for place, row in enumerate(order)]
    assert 20 < sum(moved) / len(moved) < 80  # of a buffer of 50 rows the mean way is some 50
    first = torch.tensor([buffer_order(8, 8, seed=seed, epoch=0)[0] for seed in range(800)])
    assert first.bincount(minlength=8).min() > 60  # each may be the first


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base().save(tmp_path / "vit.st")
    save_text_model(BERT, tmp_path / "bert")
    return partial(serve, monkeypatch)


KINDS = {
    "plain": (of_images, "vit.st", ()),
    "augmented": (of_images, "vit.st", ("flip", "shift", "rrc")),
    "texts": (of_texts, "bert", ()),
}


def feeds(lake, model, augment):
    """The feed of a stream, and of the same rows in a file, in the same order."""
    how = open_model(model).header.preprocess
    rows = Shuffled.of(open_stream(REF, how), REF.buffer, SILENT)
    items = open_items(stored(lake, "rows.parquet"), how)
    assert (rows.labels, rows.class_names, len(rows)) == (items.labels, items.class_names, len(items))
    assert rows.fingerprint() == items.fingerprint()
    mine, other = (
        ItemFeed.open(of, of.labels, how, augment=augment, batch_size=6, seed=5) for of in (rows, items)
    )
    if isinstance(other.source, ImageSource):  # what is held is augmented by other draws
        other = replace(other, source=replace(other.source, cached_inputs=None))
    return mine, replace(other, buffer=REF.buffer)


def same(one, other):
    assert (one.first, one.total, one.weight) == (other.first, other.total, other.weight)
    assert torch.equal(one.labels, other.labels)
    pairs = []
    map_inputs(pairs.append, one.inputs)
    others = []
    map_inputs(others.append, other.inputs)
    assert all(torch.equal(x, y) for x, y in zip(pairs, others, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [WHOLE, Share(0, 1, 2), Share(1, 1, 2), Share(0, 2, 4)])
def test_batches_are_those_of_a_file_wherever_one_begins(served, kind, share):
    made, model, augment = KINDS[kind]
    lake = served(made(75))
    mine, other = feeds(lake, model, augment)
    for start, stop in ((0, 2 * mine.steps_per_epoch), (5, 20), (13, 14)):
        for one, two in zip(mine.steps(start, stop, share), other.steps(start, stop, share), strict=True):
            for piece, like in zip(one, two, strict=True):
                same(piece, like)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_the_batches_that_it_gives_of_a_file(served, kind):
    made, model, augment = KINDS[kind]
    both = (feed.reseeded(9).steps(0, 4, WHOLE) for feed in feeds(served(made(75)), model, augment))
    for one, two in zip(*both, strict=True):
        same(one[0], two[0])


def test_mixed_images_are_those_of_a_file(served):
    mine, other = feeds(served(of_images(75)), "vit.st", ("flip",))
    _, *size = open_model("vit.st").header.preprocess.input_size
    mixing = Mixing(mixup=0.8, cutmix=1.0, size=tuple(size), classes=2)
    both = (replace(feed, mixing=mixing).steps(3, 17, Share(1, 1, 2)) for feed in (mine, other))
    for one, two in zip(*both, strict=True):
        same(one[0], two[0])


@pytest.mark.parametrize("share", [WHOLE, Share(1, 1, 2)])
def test_no_more_rows_are_held_than_the_buffer_and_some_batches(served, monkeypatch, share):
    lake = served(of_images(600))
    mine, _ = feeds(lake, "vit.st", ())
    most, taken = [0], streamed.StreamSource._coming

    def watched(self, wanted):
        for given_ in taken(self, wanted):
            ahead[0] += 1
            yield given_

    ahead, used = [0], 0
    monkeypatch.setattr(streamed.StreamSource, "_coming", watched)
    lake.read.clear()
    for (piece,) in mine.steps(0, mine.steps_per_epoch, share):
        most.append(ahead[0] - used)
        used += len(piece.labels)
        assert lake.read[-1] < piece.first + used / share.pieces * share.total + 20 + 4 * 6 + 2 * ROWS
    assert max(most) <= 20 + streamed.AHEAD * 6
    assert lake.read == [*range(600)]  # once an epoch


def test_memory_holds_the_buffer_however_many_rows_there_are(served):
    def most(count):
        lake = served(Lake(count, lambda i: image(i, side=96), IMAGES))
        how = open_model("vit.st").header.preprocess
        rows = Shuffled.of(open_stream(REF, how), REF.buffer, SILENT)
        feed = ItemFeed.open(rows, rows.labels, how, augment=(), batch_size=6, seed=5)
        steps = feed.steps(0, feed.steps_per_epoch, WHOLE)
        return most_held(lake, lambda: deque(steps, maxlen=0)).memory

    few, many = most(100), most(400)
    assert few < 20 + streamed.AHEAD * 6 + 4 * ROWS
    assert many < few + ROWS


def test_rows_that_change_are_told(served):
    lake = served(of_images(75))
    mine, _ = feeds(lake, "vit.st", ())
    lake.row = lambda i: image(i + (i == 40))
    with pytest.raises(DataError, match="row 40 has changed since the stream was first read"):
        list(mine.steps(0, 13, WHOLE))
    lake.row, lake.count = image, 74
    with pytest.raises(DataError, match="ends after 74 rows, but had 75"):
        list(mine.steps(0, 13, WHOLE))
    assert Path("rows.parquet").exists()
