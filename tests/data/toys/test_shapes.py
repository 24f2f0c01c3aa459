from __future__ import annotations

import hashlib

import numpy as np
import pytest
from PIL import Image

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.data.toys import (
    COLOURS,
    KNOWN_DOMAIN,
    NOVEL_DOMAIN,
    SHAPE_COUNTS,
    SHAPE_DOMAINS,
    SHAPES,
    SIZE,
    SPLITS,
    draw,
    open_shapes,
)
from hydractl.errors import DataError, UsageError


def pixels(images, indices):
    return [np.asarray(images.image(i)) for i in indices]


def test_every_pair_is_known_or_novel_and_each_word_is_known():
    known, novel = (
        {tuple(name.split()) for name in SHAPE_DOMAINS[domain]} for domain in (KNOWN_DOMAIN, NOVEL_DOMAIN)
    )

    assert known | novel == {(colour, shape) for colour in COLOURS for shape in SHAPES}
    assert (len(known), len(novel), known & novel) == (24, 12, set())
    for half in (SHAPE_DOMAINS[NOVEL_DOMAIN][:6], SHAPE_DOMAINS[NOVEL_DOMAIN][6:]):
        assert {name.split()[0] for name in half} == set(COLOURS)
        assert {name.split()[1] for name in half} == set(SHAPES)
    assert {colour for colour, _ in known} == set(COLOURS)
    assert {shape for _, shape in known} == set(SHAPES)


@pytest.mark.parametrize(
    ("reference", "count", "classes"),
    [
        ("shapes::split=train", 9600, 24),
        ("shapes::split=val", 720, 24),
        ("shapes::split=test", 960, 24),
        ("shapes", 11280, 24),
        ("shapes::domain=known,split=val", 720, 24),
        ("shapes::domain=novel", 720, 12),
        ("shapes::domain=novel,classes=0-5", 360, 6),
        ("shapes::split=test,classes=red cross+blue circle", 80, 2),
        ("shapes::split=test,limit=48", 48, 24),
    ],
)
def test_sets_hold_all_classes_evenly(reference, count, classes):
    images = open_data(reference)

    counts = np.bincount(images.labels, minlength=classes)
    assert (len(images), len(images.class_names)) == (count, classes)
    assert set(counts) == {count // classes}


def test_the_whole_is_its_splits_and_no_image_is_in_two():
    parts = {split: open_data(f"shapes::split={split},limit=200") for split in SPLITS}
    digests = [images.item_digest(i) for images in parts.values() for i in range(len(images))]

    assert len(set(digests)) == len(digests)
    assert len(open_data("shapes")) == sum(SHAPE_COUNTS.values())


def test_an_image_hangs_on_its_place_alone():
    whole = open_data("shapes::split=test")
    some = open_data("shapes::split=test,classes=5-7,limit=30")
    draw.cache_clear()

    for i in (0, 11, 29):
        name = some.class_names[some.labels[i]]
        at = [j for j in range(len(whole)) if whole.class_names[whole.labels[j]] == name]
        assert any(np.array_equal(np.asarray(some.image(i)), x) for x in pixels(whole, at))
    assert (
        open_data("shapes::split=val,limit=9").fingerprint()
        == open_data("shapes::split=val,limit=9").fingerprint()
    )


def test_images_are_pinned():
    # different pixels change all published numbers
    sha = hashlib.sha256()
    for name in ("red circle", "blue star", "green cross", "yellow ring", "purple triangle", "orange square"):
        image = draw(name, seed="test-0")
        assert (image.mode, image.size) == ("RGB", (SIZE, SIZE))
        sha.update(image.tobytes())

    assert sha.hexdigest()[:16] == "afa66aaba200c2a2"


def test_shapes_have_their_colour_and_leave_room_for_errors():
    """Compares mean colours, because single pixels are noisy."""
    means = {
        name: np.mean(
            [np.asarray(draw(f"{name} square", seed=f"train-{i}")).mean((0, 1)) for i in range(60)], axis=0
        )
        for name in COLOURS
    }
    for name, mean in means.items():
        others = np.mean([means[other] for other in COLOURS if other != name], axis=0)
        tint = np.asarray(COLOURS[name]) - np.mean([*COLOURS.values()], axis=0)
        assert (mean - others) @ tint > 0
    image = np.asarray(draw("red circle", seed="train-1")).astype(int)
    assert (np.abs(np.diff(image, axis=0)) > 0).mean() > 0.8


def test_an_unknown_shape_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="octagon"):
        draw("red octagon", seed="x")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("shapes::split=valid", "has no split `valid`"),
        ("shapes::domain=new", "has no domain `new`; it has known, novel"),
        ("shapes::domain=novel,split=test", "of the domain novel has no split `test`"),
        ("shapes::classes=red octagon", "no class `red octagon`"),
        ("shapes::classes=24", "no class `24`"),
    ],
)
def test_errors_say_what_there_is(reference, message):
    with pytest.raises(DataError, match=message):
        open_data(reference)


@pytest.mark.parametrize("key", ["size=8", "seed=1", "label=x", "config=c"])
def test_keys_of_other_sources_are_refused(key):
    with pytest.raises(UsageError, match="does not take the key"):
        DataRef.parse(f"shapes::{key}")


def test_a_text_model_cannot_read_them():
    with pytest.raises(DataError, match="`shapes` are images"):
        open_data("shapes", content=Content.TEXTS)


def test_a_place_outside_the_set_is_refused():
    images = open_shapes(DataRef.parse("shapes::split=val"))

    for index in (-1, 720):
        with pytest.raises(IndexError):
            images.image(index)
    assert isinstance(images.image(0), Image.Image)
