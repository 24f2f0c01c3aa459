from __future__ import annotations

from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_sample_image

from hydractl.data.open_dataset import open_data
from hydractl.data.toys import _digits, _photos, spread, stratified_split
from hydractl.errors import DataError, UsageError


def pixels(images):
    return np.stack([np.asarray(images.image(i)) for i in range(len(images))])


@given(st.lists(st.integers(0, 3), max_size=60))
def test_split_is_a_partition_even_in_every_class(labels):
    parts = stratified_split(labels)

    assert sorted(i for part in parts for i in part) == list(range(len(labels)))
    for label in set(labels):
        train, val, test = (sum(labels[i] == label for i in part) for part in parts)
        total = train + val + test
        assert abs(train - 0.6 * total) < 1
        assert abs(val - 0.2 * total) < 1
        assert abs(test - 0.2 * total) < 1


def test_split_is_pinned():
    # first items of each part: a change here changes all published numbers
    train, val, test = stratified_split(load_digits().target.tolist())

    assert [len(train), len(val), len(test)] == [1074, 359, 364]
    assert (train[:4], val[:4], test[:4]) == ((0, 1, 3, 4), (16, 24, 25, 35), (2, 5, 6, 15))


def test_digits_are_scikit_learns_on_the_scale_to_255():
    images, raw = open_data("digits"), load_digits()

    assert np.array_equal(pixels(images), np.rint(raw.images * 255 / 16).astype(np.uint8))
    assert images.labels == tuple(raw.target)
    assert images.image(0).mode == "L"
    assert images.class_names == tuple("0123456789")


def test_digits_splits_cover_everything():
    whole = sorted(pixels(open_data("digits")).reshape(-1, 64).tolist())
    parts = [
        pixels(open_data(f"digits::split={split}")).reshape(-1, 64) for split in ("train", "val", "test")
    ]

    assert sorted(np.concatenate(parts).tolist()) == whole


def test_classes_are_relabelled():
    images = open_data("digits::classes=7+3-4")

    assert images.class_names == ("3", "4", "7")
    assert set(images.labels) == {0, 1, 2}
    assert len(images) == sum(label in {3, 4, 7} for label in load_digits().target)


def test_photos_alternate_and_lie_on_the_grid():
    images = open_data("photos::size=50,limit=9")
    grids = []
    for name in ("china.jpg", "flower.jpg"):
        photo = load_sample_image(name)
        grids.append([photo[y : y + 50, x : x + 50] for y in range(0, 400, 50) for x in range(0, 600, 50)])

    assert (len(images), images.labels, images.class_names) == (9, None, ())
    for i, patch in enumerate(pixels(images)):
        assert any(np.array_equal(patch, cell) for cell in grids[i % 2])


def test_photos_default_and_most():
    assert pixels(open_data("photos")).shape == (400, 8, 8, 3)
    assert len(open_data("photos::size=200,limit=1000")) == 2 * 2 * 3


def test_noise_is_uniform_and_pinned():
    values = pixels(open_data("noise"))

    assert values.shape == (400, 8, 8)
    assert abs(values.mean() - 127.5) < 2
    assert (values.min(), values.max()) == (0, 255)
    assert open_data("noise::size=3,limit=1").image(0).tobytes().hex() == "5f82c2d9cfeb0fa321"


def test_noise_depends_on_seed_and_place_alone():
    few, many, other = (
        pixels(open_data(f"noise::{rest}")) for rest in ("limit=3", "limit=5", "limit=3,seed=1")
    )

    assert np.array_equal(few, many[:3])
    assert not np.array_equal(few, other)
    with pytest.raises(IndexError):
        open_data("noise::limit=3").image(3)


@given(st.integers(0, 50), st.integers(1, 60))
def test_spread_is_even(total, count):
    places = spread(total, count)
    gaps = np.diff(places)

    assert len(places) == min(total, count)
    assert all(0 <= place < total for place in places)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("digits::split=tset", DataError, "`digits` has no split `tset`"),
        ("digits::classes=12", DataError, "have no class `12`; their 10 classes are `0`, `1`"),
        ("digits::classes=5-12", DataError, "have no class `12`"),
        ("digits::classes=7-3", UsageError, "the range is reversed"),
        ("photos::size=428", UsageError, "640 x 427 pixels, too small for patches of size=428"),
    ],
)
def test_what_is_not_there(text, error, message):
    with pytest.raises(error) as caught:
        open_data(text)

    assert message in caught.value.message


def test_a_scikit_learn_without_its_data(monkeypatch, tmp_path):
    empty = ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("hydractl.data.toys.find_spec", lambda _: empty)
    _digits.cache_clear()
    _photos.cache_clear()

    for text in ("digits", "photos"):
        with pytest.raises(DataError, match="the installed scikit-learn lacks") as caught:
            open_data(text)
        assert caught.value.hint == "reinstall scikit-learn"
