from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.data.batches import batches, epoch_order, tensor_cache
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform, train_transform
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess

GREY = Preprocess(input_size=(1, 8, 8), mean=(0.0,), std=(1.0,))
DIGITS = open_data("digits::limit=30")
EVAL = eval_transform(GREY)
WHOLE = torch.stack([EVAL(DIGITS.image(i)) for i in range(30)])


@settings(max_examples=25)
@given(st.integers(1, 40), st.none() | st.lists(st.integers(0, 29), max_size=70))
def test_batches_hold_every_index_once_in_order(batch_size, indices):
    found = list(batches(DIGITS, EVAL, batch_size=batch_size, indices=indices))
    order = torch.tensor(list(range(30)) if indices is None else indices, dtype=torch.int64)

    assert [len(batch.indices) for batch in found[:-1]] == [batch_size] * (len(found) - 1)
    if found:
        assert torch.equal(torch.cat([batch.indices for batch in found]), order)
        assert torch.equal(torch.cat([batch.inputs for batch in found]), WHOLE[order])
    else:
        assert len(order) == 0


def test_augmented_batches_do_not_depend_on_their_size_or_company():
    epoch = train_transform(GREY, ("flip", "shift")).at(seed=1, epoch=2)
    order = epoch_order(30, seed=1, epoch=2)

    large = next(batches(DIGITS, epoch, batch_size=30, indices=order))
    small = [
        batch
        for half in (order[:15], order[15:])
        for batch in batches(DIGITS, epoch, batch_size=4, indices=half)
    ]

    assert torch.equal(torch.cat([batch.inputs for batch in small]), large.inputs)
    assert torch.equal(large.inputs[3], epoch(DIGITS.image(int(order[3])), int(order[3])))
    assert not torch.equal(large.inputs, WHOLE[order])


def test_random_steps_draw_in_any_thread_what_they_draw_alone():
    ready = threading.Barrier(2)
    both = threading.local()

    def meet(image):
        if not hasattr(both, "met"):  # two threads must draw at the same time
            both.met = ready.wait(timeout=100)
        return image

    transform = train_transform(GREY, ("flip", "shift"))
    met = replace(transform, random=(meet, *transform.random)).at(seed=0, epoch=0)
    alone = transform.at(seed=0, epoch=0)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda i: met(DIGITS.image(i), i), range(30)))

    assert torch.equal(torch.stack(found), torch.stack([alone(DIGITS.image(i), i) for i in range(30)]))


def test_stopping_early_leaves_no_thread():
    before = set(threading.enumerate())

    iterator = batches(DIGITS, EVAL, batch_size=2)
    next(iterator)
    begun = set(threading.enumerate()) - before
    iterator.close()

    assert begun
    for thread in begun:  # each thread finishes its current image
        thread.join(timeout=100)
    assert not any(thread.is_alive() for thread in begun)


@pytest.mark.parametrize("ahead", [True, False])
def test_what_is_decoded_while_a_batch_is_in_use(ahead):
    begun = []

    def watch(image):
        begun.append(image)
        return EVAL(image)

    found = iter(tensor_cache(DIGITS, watch, batch_size=8, limit_bytes=0, ahead=ahead))
    inputs = []
    for number in range(1, 5):
        inputs.append(next(found).inputs)
        more = ahead and number < 4
        # wait long for expected work; unexpected work would start within milliseconds
        end = time.monotonic() + (100 if more else 0.02)
        while len(begun) <= 8 * number and time.monotonic() < end:
            time.sleep(0.001)

        assert (len(begun) > 8 * number) == more
    assert torch.equal(torch.cat(inputs), WHOLE)


def test_fast_decoding_reads_large_jpegs_at_a_size_that_suffices(tmp_path, picture):
    smooth = picture(0, size=(16, 12)).resize((400, 300))
    for name in ("a.jpg", "b.png"):
        smooth.save(tmp_path / name)
    sizes = []
    preprocess = Preprocess(input_size=(3, 28, 28), mean=(0.0,) * 3, std=(1.0,) * 3, crop_pct=0.875)

    def watched(transform):
        return replace(
            transform,
            steps=(partial(watch, "exact"), *transform.steps),
            quick=(partial(watch, "quick"), *transform.quick),
        )

    def watch(way, image):
        sizes.append((way, *image.size))
        return image

    found = {}
    for key in ("", "::decode=fast"):
        items = open_data(f"{tmp_path}/{key}")
        (found[key],) = batches(items, watched(eval_transform(preprocess)), batch_size=2)
    exact, quick = [("exact", 400, 300)] * 2, [("quick", 100, 75), ("quick", 400, 300)]
    assert sorted(sizes) == exact + quick  # the order of the two threads is random
    assert (found[""].inputs[1] - found["::decode=fast"].inputs[1]).abs().max() < 2 / 255
    assert 0 < (found[""].inputs[0] - found["::decode=fast"].inputs[0]).abs().mean() < 2 / 255
    assert len({open_data(f"{tmp_path}/{key}").fingerprint() for key in found}) == 2
    assert train_transform(preprocess, ("rrc",)).least == 227  # a crop of 8 % of the area has sides of 28 %
    with pytest.raises(UsageError, match="`decode=slow`: must be `fast`"):
        open_data(f"{tmp_path}/::decode=slow")


def test_a_corrupt_image_surfaces(folder):
    (folder / "bee" / "3.png").write_bytes(b"junk")

    with pytest.raises(DataError, match=r"bee/3\.png"):
        list(batches(open_data(str(folder)), EVAL, batch_size=2))


@pytest.mark.parametrize("limit_bytes", [0, 30 * 64 * 4 - 1, 30 * 64 * 4, 10**9])
def test_cache_can_be_gone_over_again(limit_bytes):
    calls = []

    def counted(image):
        calls.append(image)
        return EVAL(image)

    cache = tensor_cache(DIGITS, counted, batch_size=7, limit_bytes=limit_bytes)
    passes = [torch.cat([batch.inputs for batch in cache]) for _ in range(3)]

    assert all(torch.equal(one, WHOLE) for one in passes)
    assert len(calls) == (31 if limit_bytes >= 30 * 64 * 4 else 91 if limit_bytes else 90)


def test_cache_of_nothing():
    assert list(tensor_cache(DIGITS, EVAL, batch_size=7, indices=())) == []


@given(st.integers(0, 40), st.integers(0, 9), st.integers(0, 9))
def test_epoch_order_is_a_permutation_of_its_own(count, seed, epoch):
    order = epoch_order(count, seed=seed, epoch=epoch)

    assert sorted(order.tolist()) == list(range(count))
    assert torch.equal(order, epoch_order(count, seed=seed, epoch=epoch))


def test_epochs_and_seeds_differ():
    orders = {
        tuple(epoch_order(20, seed=seed, epoch=epoch).tolist()) for seed in range(5) for epoch in range(5)
    }

    assert len(orders) == 25


@pytest.mark.parametrize(
    ("batch_size", "indices", "message"),
    [
        (0, None, "batch_size is 0"),
        (1, [30], r"outside 0\.\.29"),
        (1, torch.tensor([-1]), r"outside 0\.\.29"),
    ],
)
def test_bad_arguments(batch_size, indices, message):
    for function in (batches, tensor_cache):
        with pytest.raises(ValueError, match=message):
            function(DIGITS, EVAL, batch_size=batch_size, indices=indices)
