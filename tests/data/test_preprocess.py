from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from timm.data import create_transform

from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import AUGMENTATIONS, eval_transform, sample_seed, to_channels, train_transform
from hydractl.errors import DataError, UsageError
from hydractl.manifest.header import Preprocess

CROP_MODES = get_args(Preprocess.model_fields["crop_mode"].annotation)
INTERPOLATIONS = get_args(Preprocess.model_fields["interpolation"].annotation)

RGB = Preprocess(input_size=(3, 24, 24), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), crop_pct=0.875)
GREY = Preprocess(input_size=(1, 8, 8), mean=(0.25,), std=(0.5,))


def changed(preprocess, **change):
    return Preprocess(**{**preprocess.model_dump(), **change})


@pytest.mark.parametrize("crop_mode", CROP_MODES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("input_size", [(3, 24, 24), (3, 16, 32)])
def test_evaluation_is_timms(picture, crop_mode, interpolation, input_size):
    ours = changed(RGB, crop_mode=crop_mode, interpolation=interpolation, input_size=input_size)
    timms = create_transform(**ours.model_dump(), is_training=False)
    image = picture(0, size=(50, 37))

    assert torch.equal(eval_transform(ours)(image), timms(image))


SIZES = [
    (50, 37),
    (37, 50),
    (60, 60),
    (33, 200),
    (200, 33),
    (64, 48),
    (48, 64),
    (37, 31),
    (28, 28),
    (24, 61),
    (90, 64),
    (64, 130),
]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("pixels", "share"), [(28, 0.875), (56, 0.875), (28, 0.9), (24, 1.0)])
def test_what_is_cut_off_need_not_be_computed(picture, pixels, share, interpolation):
    preprocess = changed(RGB, input_size=(3, pixels, pixels), crop_pct=share, interpolation=interpolation)
    timms = create_transform(**preprocess.model_dump(), is_training=False)
    for size in SIZES:
        image = picture(3, size=size)

        assert torch.equal(eval_transform(preprocess)(image), timms(image)), size


@pytest.mark.parametrize("offset", ["nearest", "before"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(61, 40), (40, 61), (33, 33), (21, 90), (300, 201)])
def test_the_quick_way_differs_by_rounding(picture, size, interpolation, offset):
    preprocess = changed(
        RGB, input_size=(3, 29, 29), crop_pct=0.8, interpolation=interpolation, crop_offset=offset
    )
    transform = eval_transform(preprocess)
    smooth = picture(0, size=(16, 12)).resize(
        size
    )  # values are clipped to 0..255 between the two passes of a resize
    pixels = [
        255 * one(smooth) * torch.tensor(preprocess.std)[:, None, None]
        for one in (transform, replace(transform, steps=transform.quick))
    ]

    assert transform.quick != transform.steps
    assert (pixels[0] - pixels[1]).abs().max() < 2.5
    assert (pixels[0] - pixels[1]).abs().mean() < 0.3


@pytest.mark.parametrize("preprocess", [{"crop_mode": "squash"}, {"crop_mode": "border"}])
def test_what_is_not_cut_out_of_the_middle_has_no_quick_way(preprocess):
    transform = eval_transform(changed(RGB, **preprocess))

    assert transform.quick == transform.steps


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1"])
def test_any_mode_becomes_the_models(picture, mode):
    image = picture(0, size=(50, 37), mode=mode)

    assert torch.equal(eval_transform(RGB)(image), eval_transform(RGB)(image.convert("RGB")))
    assert eval_transform(GREY)(image).shape == (1, 8, 8)


def test_a_palettes_transparency_is_dropped_in_silence(picture):
    image = picture(0, mode="P")
    image.info["transparency"] = bytes(range(256))

    assert to_channels(image, 3).tobytes() == picture(0, mode="P").convert("RGB").tobytes()


@pytest.mark.parametrize("augment", [(), ("rrc",)])
@pytest.mark.parametrize("preprocess", [RGB, GREY], ids=["rgb", "grey"])
def test_a_transparent_colour_is_white_only_if_the_header_says_so(picture, augment, preprocess):
    """Training and evaluation agree. Headers without the field keep the colour."""
    image = picture(0, size=(50, 37)).quantize(4)
    image.info["transparency"] = 1
    kept = np.array(image.convert("RGB"))
    filled = np.where(np.asarray(image)[..., None] == 1, np.uint8(255), kept)
    assert (filled != kept).any()
    for fields, pixels in (({}, kept), ({"transparency": "white"}, filled)):
        given = Preprocess.model_validate(preprocess.model_dump() | fields)
        plain = Image.fromarray(pixels).convert({1: "L", 3: "RGB"}[preprocess.input_size[0]])
        assert torch.equal(eval_transform(given)(image), eval_transform(given)(plain))
        training = train_transform(given, augment).at(seed=1, epoch=0)
        assert torch.equal(training(image, 0), training(plain, 0))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_images_are_refused(mode):
    with pytest.raises(DataError, match=f"mode `{mode}` has more than 8 bits per channel"):
        eval_transform(GREY)(Image.new(mode, (8, 8)))


def test_lab_becomes_what_its_rgb_is(picture):
    image = picture(0, size=(50, 37)).convert("LAB")

    for made_for in (GREY, RGB):
        assert torch.equal(eval_transform(made_for)(image), eval_transform(made_for)(image.convert("RGB")))


@pytest.mark.parametrize(("made_for", "mode"), [(GREY, "L"), (RGB, "RGB")])
def test_a_mode_that_becomes_nothing_else_is_refused(made_for, mode):
    with pytest.raises(DataError, match=f"mode `La` cannot be read as `{mode}`"):
        eval_transform(made_for)(Image.new("La", (8, 8)))


def test_digits_go_through_pixel_by_pixel():
    image = open_data("digits").image(7)

    expected = (torch.from_numpy(np.array(image)) / 255 - 0.25) / 0.5

    assert torch.allclose(eval_transform(GREY)(image)[0], expected, rtol=0, atol=1e-7)
    assert eval_transform(GREY)(image).dtype == torch.float32


@pytest.mark.parametrize("crop_mode", CROP_MODES)
@pytest.mark.parametrize("size", [(8, 8), (20, 13)])
def test_grey_is_what_rgb_gives(picture, crop_mode, size):
    grey = changed(GREY, crop_mode=crop_mode, crop_pct=0.9)
    three = Preprocess(
        input_size=(3, 8, 8), mean=(0.25,) * 3, std=(0.5,) * 3, crop_mode=crop_mode, crop_pct=0.9
    )
    image = picture(0, size=size, mode="L")

    assert torch.equal(eval_transform(grey)(image).expand(3, 8, 8), eval_transform(three)(image))


@pytest.mark.parametrize("preprocessing", [RGB, GREY])
def test_no_augmentation_is_evaluation(picture, preprocessing):
    image = picture(0, size=(50, 37))

    assert torch.equal(train_transform(preprocessing, ())(image, 3), eval_transform(preprocessing)(image))


@pytest.mark.parametrize("preprocessing", [RGB, GREY])
@pytest.mark.parametrize("augment", [*((name,) for name in AUGMENTATIONS), tuple(AUGMENTATIONS)])
def test_augmentation_depends_on_seed_epoch_and_index(picture, preprocessing, augment):
    image = picture(0, size=(50, 37))
    transform = train_transform(preprocessing, augment)

    def draw(seed, epoch, index):
        return transform.at(seed=seed, epoch=epoch)(image, index)

    first = draw(1, 2, 3)
    torch.rand(5)

    assert torch.equal(draw(1, 2, 3), first)
    assert first.shape == preprocessing.input_size
    assert first.dtype == torch.float32
    assert any(not torch.equal(draw(1, 2, index), first) for index in range(20))
    assert any(not torch.equal(draw(1, epoch, 3), first) for epoch in range(20))
    assert any(not torch.equal(draw(seed, 2, 3), first) for seed in range(20))


def test_the_order_of_names_does_not_matter(picture):
    image = picture(0, size=(50, 37))

    assert torch.equal(
        train_transform(RGB, ("randaugment", "flip", "rrc"))(image, 5),
        train_transform(RGB, ("rrc", "flip", "randaugment"))(image, 5),
    )


def test_the_global_generator_stays(picture):
    before = torch.get_rng_state()

    for index in range(20):
        train_transform(RGB, tuple(AUGMENTATIONS))(picture(0), index)

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("augment", [*((name,) for name in AUGMENTATIONS), tuple(AUGMENTATIONS)])
def test_what_is_drawn_is_what_the_global_generator_gives(picture, augment):
    image = picture(0, size=(50, 37))
    transform = train_transform(RGB, augment).at(seed=1, epoch=2)
    for index in range(20):
        prepared = image
        for step in transform.resize:
            prepared = step(prepared)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(sample_seed(1, 2, index))
            for step in (*transform.random, transform.finish):
                prepared = step(prepared)

        assert torch.equal(transform(image, index), prepared)


def test_flip_flips_half(picture):
    image = picture(0, size=(24, 24))
    plain = eval_transform(changed(RGB, crop_pct=1.0))(image)
    flip = train_transform(changed(RGB, crop_pct=1.0), ("flip",))

    drawn = [flip(image, seed) for seed in range(200)]

    assert all(torch.equal(one, plain) or torch.equal(one, plain.flip(-1)) for one in drawn)
    assert 70 < sum(torch.equal(one, plain) for one in drawn) < 130


def test_shift_moves_whole_pixels_and_fills_with_black():
    image = open_data("digits").image(7)
    plain = np.asarray(image)
    shift = train_transform(Preprocess(input_size=(1, 8, 8), mean=(0.0,), std=(1.0,)), ("shift",))
    moved = {}
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            padded = np.pad(plain, 1)
            moved[dy, dx] = padded[1 - dy : 9 - dy, 1 - dx : 9 - dx]

    drawn = [np.rint(shift(image, seed)[0].numpy() * 255).astype(np.uint8) for seed in range(300)]
    found = [next(key for key, value in moved.items() if np.array_equal(value, one)) for one in drawn]

    assert set(found) == set(moved)
    # a fifth of the images is shifted, and a quarter of these shifts rounds to zero
    assert 20 < sum(key != (0, 0) for key in found) < 75


def test_seeds_differ():
    seeds = {sample_seed(a, b, c) for a in range(8) for b in range(8) for c in range(8)}

    assert len(seeds) == 512
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("augment", "message", "hint"),
    [
        (
            ("flop",),
            "unknown augmentation `flop`; known augmentations: rrc, flip, shift, randaugment",
            "did you mean `flip`?",
        ),
        (("flip", "flip"), "augmentation `flip` appears twice", None),
    ],
)
def test_bad_augmentations(augment, message, hint):
    with pytest.raises(UsageError) as caught:
        train_transform(RGB, augment)

    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_size": (2, 8, 8)}, "input_size"),
        ({"input_size": (3, 0, 8)}, "input_size"),
        ({"mean": (0.5,)}, "must have 3 numbers each"),
        ({"std": (0.5, 0.5, 0.0)}, "std"),
        ({"crop_pct": 0.0}, "crop_pct"),
        ({"crop_pct": 1.1}, "crop_pct"),
        ({"crop_pct": -0.5}, "crop_pct"),
        ({"crop_pct": 1e-9}, "crop_pct 1e-09 resizes images to"),
        ({"crop_pct": float("nan")}, "crop_pct"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean"),
        ({"mean": (0.5, 0.5, 1e300)}, "mean"),
        ({"std": (0.5, 0.5, 1e-50)}, "std"),
        ({"std": (0.5, 0.5, float("inf"))}, "std"),
        ({"resize_backend": "pil"}, "resize_backend"),
        ({"interpolation": "bicubik"}, "interpolation"),
        ({"crop_mode": "centre"}, "crop_mode"),
    ],
)
def test_bad_preprocessing(change, message):
    with pytest.raises(ValidationError, match=message):
        changed(RGB, **change)
