"""Corruptions: pixels of the benchmarks' code, changes of texts, and draws that depend on the sample only."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data.batches import BatchShare, eval_batches
from hydractl.data.datasets import TextSet
from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import eval_transform, sample_seed
from hydractl.errors import UsageError
from hydractl.research.corruptions.images import (
    CIFAR,
    ICE_MEAN,
    ICE_SPREAD,
    IMAGENET,
    TINY,
    _ice,
    corrupted,
    strengths,
)
from hydractl.research.corruptions.measure import with_corruption
from hydractl.research.corruptions.names import (
    ALL,
    IMAGES,
    TEXTS,
    Corruption,
    Corruptions,
    expand_corruptions,
)
from hydractl.research.corruptions.texts import NEIGHBOURS, RATES, corrupted_text
from support.builders import base

THEIRS = json.loads((Path(__file__).parent / "corruptions.json").read_text())
DRAWN = {"frost"}
EXACT = {"motion-blur", "snow"}
TEXT = "The film is a quiet marvel, and I would see it twice. " * 40


def picture(side):
    """Return the image from which the stored numbers were computed."""
    y, x = np.mgrid[:side, :side]
    wave = (128 + 100 * np.sin(x / 3) * np.cos(y / 5)).astype(int)
    return np.stack([x * 255 // (side - 1), (x * 7 + y * 13) % 256, wave], -1).astype(np.uint8)


def random():
    return np.random.default_rng(7)


def seen(image, name, severity):
    return np.asarray(corrupted(image, Corruption(name, severity), random()))


@pytest.mark.spread(cases=17)
@pytest.mark.parametrize("name", [name for name in IMAGES if name not in DRAWN])
@pytest.mark.parametrize("side", [32, 64, 224])
def test_pixels_are_those_of_the_benchmarks(side, name):
    """Values differ by at most 1 of 255 levels, for equal draws and the parameters of the image size."""
    rows = THEIRS[str(side)][name]
    for severity, (mean, *values) in zip((1, 5) if len(rows) == 2 else range(1, 6), rows, strict=True):
        found = seen(Image.fromarray(picture(side)), name, severity)
        assert found.mean() == pytest.approx(mean, abs=0.5)  # truncation may give either of two levels
        assert np.abs(found.reshape(-1)[:: found.size // 16 + 1].astype(int) - values).max() <= (
            name not in EXACT
        )


def test_every_corruption_has_five_strengths():
    for benchmark in (CIFAR, TINY, IMAGENET):
        assert benchmark.keys() == IMAGES.keys()
        assert {len(values) for values in benchmark.values()} == {5}
    assert {len(rates) for rates in RATES.values()} == {5}
    assert RATES.keys() == TEXTS.keys()


@pytest.mark.parametrize(("side", "benchmark"), [
    (8, CIFAR), (45, CIFAR), (46, TINY), (119, TINY), (120, IMAGENET), (384, IMAGENET),
])  # fmt: skip
def test_the_size_says_which_benchmark(side, benchmark):
    assert strengths(side) is benchmark


@pytest.mark.parametrize("name", IMAGES)
def test_grey_and_small_and_oblong_images_stay_what_they_are(name):
    """Without random draws, grey images stay grey in mode RGB too."""
    for size in ((8, 8), (12, 8)):
        grey = Image.fromarray(picture(16)[..., 2]).resize(size)
        found = corrupted(grey, Corruption(name, 5), random())
        assert (found.mode, found.size) == ("L", size)
        if (name.endswith("-blur") and name[:2] in {"de", "zo"}) or name in {
            "brightness",
            "contrast",
            "pixelate",
        }:
            coloured = seen(grey.convert("RGB"), name, 5)
            np.testing.assert_allclose(coloured[..., 0], np.asarray(found), atol=1)


def test_drawn_frost_is_as_bright_as_theirs_and_as_uneven():
    layers = [_ice(64, 48, np.random.default_rng(seed)) for seed in range(8)]

    assert layers[0].shape == (64, 48, 3)
    np.testing.assert_allclose(np.mean(layers, axis=(0, 1, 2)), ICE_MEAN, atol=0.02)
    assert np.std(layers, axis=(1, 2)).mean() == pytest.approx(ICE_SPREAD, abs=0.02)
    assert not np.array_equal(layers[0], layers[1])
    kept, added = IMAGENET["frost"][4]
    frosted = seen(Image.fromarray(np.full((224, 224, 3), 90, np.uint8)), "frost", 5).mean()
    assert frosted == pytest.approx(90 * kept + 255 * added * ICE_MEAN.mean(), abs=3)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Write six files with the original names: five are sampled, and the transparency of two is ignored."""
    folder = tmp_path_factory.mktemp("frost")
    for i, suffix in enumerate(("png", "png", "png", "jpg", "jpg", "jpg")):
        values = np.random.default_rng(i).integers(0, 256, (60, 90, 4 if i < 2 else 3), dtype=np.uint8)
        Image.fromarray(values).resize((560 - 31 * i, 315 + 7 * i)).save(folder / f"frost{i + 1}.{suffix}")
    (folder / "README.txt").write_text("no picture")
    return folder


def scaled(whole, scale):
    """Compute `cv2.resize(whole, (0, 0), fx=scale, fy=scale)` by its formula, with pixel centres."""
    height, width = (round(side * scale) for side in whole.shape[:2])
    found = np.empty((height, width, 3))
    for i in range(height):
        for j in range(width):
            y, x = (
                min(max((k + 0.5) / scale - 0.5, 0), n - 1)
                for k, n in zip((i, j), whole.shape[:2], strict=True)
            )
            top, left = int(y), int(x)
            below, right = min(top + 1, whole.shape[0] - 1), min(left + 1, whole.shape[1] - 1)
            down, across = y - top, x - left
            found[i, j] = (1 - down) * (
                (1 - across) * whole[top, left] + across * whole[top, right]
            ) + down * ((1 - across) * whole[below, left] + across * whole[below, right])
    return np.rint(found)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(("side", "scale"), [(32, 0.2), (64, 0.3), (224, None)])
@pytest.mark.parametrize("severity", [1, 5])
def test_frost_of_photographs_is_theirs(photographs, side, scale, severity):
    """The reference is the code of `make_cifar_c.py`, `make_tinyimagenet_c.py` and `make_imagenet_c.py`."""
    c = {32: CIFAR, 64: TINY, 224: IMAGENET}[side]["frost"][severity - 1]
    (corruption,) = expand_corruptions([Corruptions.parse(f"frost:{severity}={photographs}")], texts=False)
    image = Image.fromarray(picture(side))
    for seed in range(3):
        theirs = np.random.default_rng(seed)
        index = theirs.integers(5)
        frost = np.asarray(Image.open(sorted(photographs.glob("frost*"))[index]))[..., :3].astype(float)
        frost = frost if scale is None else scaled(frost, scale)
        x_start, y_start = (
            theirs.integers(0, frost.shape[0] - side),
            theirs.integers(0, frost.shape[1] - side),
        )
        frost = frost[x_start : x_start + side, y_start : y_start + side]
        expected = np.clip(c[0] * np.asarray(image) + c[1] * frost, 0, 255).astype(np.uint8)

        found = np.asarray(corrupted(image, corruption, np.random.default_rng(seed)))

        assert np.abs(found.astype(int) - expected).max() <= 1
        assert np.abs(found.astype(int) - expected).mean() < 0.05


def test_photographs_are_for_all_frost_and_for_nothing_else(photographs):
    one = Corruptions.parse(f"frost:3={photographs}")
    found = expand_corruptions([Corruptions.parse(ALL), one], texts=False)

    assert len(found) == 75
    assert {each.name for each in found if each.photographs} == {"frost"}
    assert len([each for each in found if each.photographs]) == 5
    assert [path.name for path in one.photographs.files] == [
        f"frost{i}.{'png' if i < 4 else 'jpg'}" for i in range(1, 6)
    ]
    assert str(one) == f"frost:3={photographs.name}"
    assert not any(each.photographs for each in expand_corruptions([Corruptions.parse("frost")], texts=False))
    grey = corrupted(Image.fromarray(picture(8)[..., 0]), expand_corruptions([one], texts=False)[0], random())
    assert (grey.mode, grey.size) == ("L", (8, 8))


def test_photographs_that_cannot_be_are_refused(photographs, tmp_path):
    (tmp_path / "other").mkdir()
    for text, said in (
        (f"fog={photographs}", "only `frost` takes a folder of photographs"),
        (f"frost={tmp_path}/none", "is not a folder"),
        (f"frost={tmp_path}/other", "has no image"),
        (f"frost:6={photographs}", "severities must be in 1 to 5"),
    ):
        with pytest.raises(UsageError, match=said):
            Corruptions.parse(text)
    Image.new("RGB", (300, 300)).save(tmp_path / "other" / "a.png")
    two = [Corruptions.parse(f"frost={folder}") for folder in (photographs, tmp_path / "other")]
    with pytest.raises(UsageError, match="names 2 folders"):
        expand_corruptions(two, texts=False)


def inputs(items, **preprocess):
    found = {}
    for batch in eval_batches(items, base().header.preprocess, limit_bytes=0, **preprocess):
        found |= dict(zip(batch.indices.tolist(), batch.inputs, strict=True))
    return found


def test_draws_hang_on_the_sample_alone():
    corruption = Corruption("gaussian-noise", 5, seed=3)
    items = with_corruption(
        open_data("digits::limit=9").subset([4] * 9), corruption
    )  # one image at nine positions

    once = inputs(items, batch_size=4)
    again = inputs(items, batch_size=1, indices=range(8, -1, -1))
    own = inputs(items, batch_size=2, batch_share=BatchShare(1, 2))

    assert len({tuple(x.flatten().tolist()) for x in once.values()}) == 9
    for place, found in own.items():
        torch.testing.assert_close(found, once[place], rtol=0, atol=0)
    for place, found in again.items():
        torch.testing.assert_close(found, once[place], rtol=0, atol=0)
    other = inputs(with_corruption(items, Corruption("gaussian-noise", 5, seed=4)), batch_size=9)
    assert not torch.equal(other[0], once[0])
    sent = pickle.loads(pickle.dumps(items.sent([5])))  # noqa: S301 - own bytes
    assert sent.changed(eval_transform(base().header.preprocess)).corruption == corruption


def test_images_are_corrupted_after_the_crop_and_before_normalisation():
    items, preprocess = open_data("digits::limit=3"), base().header.preprocess
    corruption = Corruption("jpeg", 3)
    transform = eval_transform(preprocess)
    image = items.image(2)
    for step in transform.steps:
        image = step(image)

    expected = transform.finish(corrupted(image, corruption, random()))

    torch.testing.assert_close(
        inputs(with_corruption(items, corruption), batch_size=3)[2], expected, rtol=0, atol=0
    )


def slip(name, severity, text=TEXT, seed=0):
    return corrupted_text(text, Corruption(name, severity), np.random.default_rng(seed))


@pytest.mark.parametrize("severity", range(1, 6))
def test_what_befalls_texts(severity):
    words, letters = TEXT.split(), [x for x in TEXT if x.isalpha()]
    rate = {name: rates[severity - 1] for name, rates in RATES.items()}

    kept = slip("drop", severity).split()
    assert not Counter(kept) - Counter(words)
    assert 1 - len(kept) / len(words) == pytest.approx(rate["drop"], abs=0.05)
    swapped = slip("swap", severity).split()
    assert Counter(swapped) == Counter(words)
    moved = sum(a != b for a, b in zip(swapped, words, strict=True)) / 2 / len(words)
    assert moved == pytest.approx(
        rate["swap"] / (1 + rate["swap"]), abs=0.05
    )  # after a swap, the second word is skipped
    cased = slip("case", severity)
    assert cased.lower() == TEXT.lower()
    flipped = sum(a != b for a, b in zip(cased, TEXT, strict=True)) / len(letters)
    assert flipped == pytest.approx(rate["case"], abs=0.05)
    typed = slip("typos", severity)
    assert len(typed.split()) > 0.9 * len(words)
    untouched = sum(a == b for a, b in zip(typed.split(), words, strict=False)) if severity == 1 else None
    assert untouched is None or untouched < len(words)


def test_typos_are_of_four_kinds():
    found = {slip("typos", 5, "ab", seed) for seed in range(400)}

    assert {"ab", "ba", "b", "a", "aab", "abb"} <= found
    assert {f"{near}b" for near in NEIGHBOURS["a"]} <= found
    assert NEIGHBOURS["g"] == "fhtyvb"
    assert slip("typos", 5, "1234 ...") == "1234 ..."


@pytest.mark.parametrize("name", TEXTS)
def test_texts_may_be_empty_or_one_word(name):
    assert slip(name, 5, "") == ""
    assert slip(name, 5, "  ") == "  "
    assert all(slip("drop", 5, " word ", seed).strip() == "word" for seed in range(9))
    assert slip(name, 5) != slip(name, 5, seed=1)
    assert slip(name, 5) == slip(name, 5)


def test_both_texts_of_a_pair_are_corrupted_by_their_place():
    pairs = TextSet(name="pairs", texts=((TEXT, TEXT), (TEXT, TEXT)))
    corruption = Corruption("drop", 5)

    found = with_corruption(pairs, corruption)

    assert len({TEXT, *(text for pair in found.texts for text in pair)}) == 5
    draws = np.random.default_rng(sample_seed(*corruption.seeded(1)))
    assert found.texts[1][0] == corrupted_text(TEXT, corruption, draws)
    assert with_corruption(pairs, corruption).texts == found.texts


@pytest.mark.parametrize(("text", "name", "severities"), [
    ("fog", "fog", (1, 2, 3, 4, 5)), ("fog:3", "fog", (3,)), ("all:2-4", ALL, (2, 3, 4)), ("typos:1-1", "typos", (1,)),
])  # fmt: skip
def test_what_the_option_says(text, name, severities):
    found = Corruptions.parse(text)

    assert (found.name, found.severities) == (name, severities)
    assert Corruptions.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["fog:6", "fog:0", "fog:", "fog:3-1", "fog:1-", "fog:-2", "mist", "", "fog:1.5"]
)
def test_what_it_cannot_say(text):
    with pytest.raises(UsageError, match="--corrupt") as refusal:
        Corruptions.parse(text)
    assert refusal.value.hint


def test_several_in_one_option_are_told_apart():
    with pytest.raises(UsageError) as refusal:
        Corruptions.parse("fog:3-4,jpeg")
    assert refusal.value.hint == "repeat the option: `--corrupt fog:3-4 --corrupt jpeg`"


def test_all_are_those_that_the_model_reads():
    asked = [Corruptions.parse(text) for text in ("snow:2", "all:2", "snow:1-2")]
    assert [c.name for c in expand_corruptions(asked, texts=False)].count("snow") == 2
    assert len(expand_corruptions(asked, texts=False)) == len(IMAGES) + 1
    assert [c.name for c in expand_corruptions(asked[1:2], texts=True)] == [*TEXTS]
    with pytest.raises(UsageError, match="`--corrupt snow:2` is for images, but the model reads texts"):
        expand_corruptions(asked, texts=True)
