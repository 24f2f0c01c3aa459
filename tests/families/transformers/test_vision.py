"""`preprocessor_config.json`: inputs equal the library's."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from hydractl.data.preprocess import eval_transform
from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.transformers.hf_models import default_preprocess, read_image_processor
from hydractl.manifest.header import Preprocess

SQUASH = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 16}}
SHORTEST = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": 24}
BOTH = {"image_processor_type": "DeiTImageProcessor", "size": 32, "crop_size": {"height": 28, "width": 28}}


def folder_of(tmp_path, settings, name="preprocessor_config.json", model_type="vit"):
    (tmp_path / name).write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return tmp_path


def picture(width, height, mode="RGB"):
    """Return a smooth random image, similar to a photograph."""
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def difference(preprocess, image, library):
    """Return absolute differences of pixels, on the scale of 0..1."""
    found, expected = eval_transform(preprocess)(image), library(image).pixel_values[0]
    expected = torch.as_tensor(np.asarray(expected))
    assert found.shape == expected.shape == preprocess.input_size
    return (found - expected).abs() * torch.tensor(preprocess.std)[:, None, None]


@pytest.mark.spread(cases=32)
@pytest.mark.parametrize(
    ("resample", "backend"),
    [*((n, "torchvision") for n in range(4)), *((n, "pil") for n in range(6))],
)
@pytest.mark.parametrize(
    ("settings", "size"),
    [
        (SQUASH, (24, 16)),
        (SQUASH | {"do_normalize": False}, (24, 16)),
        (SQUASH | {"do_rescale": False, "image_mean": [120.0] * 3, "image_std": [60.0] * 3}, (24, 16)),
        (SQUASH | {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}, (24, 16)),
        (SHORTEST, (24, 24)),
        (SHORTEST | {"size": {"shortest_edge": 31}, "crop_size": 22}, (22, 22)),
        (BOTH, (28, 28)),
        (BOTH | {"do_center_crop": False}, (32, 32)),
    ],
    ids=["squash", "raw", "not-rescaled", "minus-one", "shortest", "odd", "both", "no-crop"],
)
def test_images_are_what_the_library_makes_of_them(tmp_path, settings, size, resample, backend):
    """Folders use the library's default backend, torchvision. Headers without a backend mean Pillow."""
    from transformers import AutoImageProcessor

    folder = folder_of(tmp_path, settings | {"resample": resample})
    chosen = {} if backend == "torchvision" else {"backend": backend}
    library = AutoImageProcessor.from_pretrained(folder, **chosen)
    assert library.backend == backend
    preprocess = read_image_processor(folder, (3, *size))
    assert preprocess.resize_backend == "torchvision"
    if backend == "pil":
        preprocess = Preprocess.model_validate(preprocess.model_dump(exclude={"resize_backend"}))
    for width, height in ((40, 52), (52, 40), (33, 33), (9, 7)):
        assert difference(preprocess, picture(width, height), library).max() <= 1e-6


@pytest.mark.parametrize("resample", [4, 5])
def test_filters_that_torchvision_lacks_are_pillows(tmp_path, resample):
    folder = folder_of(tmp_path, SQUASH | {"resample": resample})
    found = read_image_processor(folder, (3, 24, 16))
    pillow = found.model_copy(update={"resize_backend": "pillow"})
    image = picture(40, 52)
    assert torch.equal(eval_transform(found)(image), eval_transform(pillow)(image))


@pytest.mark.parametrize("settings", [SHORTEST, BOTH], ids=["shortest", "both"])
def test_crops_of_odd_margins_are_the_librarys(tmp_path, settings):
    """With a margin of 3 pixels, the library removes 1 on the left, and torchvision removes 2."""
    from transformers import AutoImageProcessor

    folder = folder_of(tmp_path, settings | {"resample": 3})
    library = AutoImageProcessor.from_pretrained(folder)
    size = library.crop_size
    preprocess = read_image_processor(folder, (3, size.height, size.width))
    assert preprocess.crop_offset == "before"
    for width, height in itertools.product((29, 40, 51, 64), (28, 36, 45)):
        assert difference(preprocess, picture(width, height), library).max() <= 1e-6


def test_grey_images_and_what_is_left_out(tmp_path):
    settings = {"size": {"height": 8, "width": 8}, "image_mean": [0.25], "image_std": 0.5}
    found = read_image_processor(folder_of(tmp_path, settings), (1, 8, 8))
    assert (found.mean, found.std, found.interpolation) == ((0.25,), (0.5,), "bilinear")
    assert (found.input_size, found.crop_mode, found.crop_pct) == ((1, 8, 8), "squash", 1.0)


def test_a_processor_of_several_kinds_is_read_too(tmp_path):
    found = read_image_processor(
        folder_of(tmp_path, {"image_processor": SQUASH}, "processor_config.json"), (3, 24, 16)
    )
    assert found == read_image_processor(folder_of(tmp_path, SQUASH), (3, 24, 16))


@pytest.mark.parametrize("resized", range(24, 300, 7))
def test_resizing_is_exact_for_any_two_sizes(tmp_path, resized):
    settings = SHORTEST | {"size": {"shortest_edge": resized}, "crop_size": 24}
    fraction = read_image_processor(folder_of(tmp_path, settings), (3, 24, 24)).crop_pct
    assert int(24 / fraction) == resized


def test_a_model_that_takes_any_size_takes_what_its_folder_says(tmp_path):
    found = read_image_processor(folder_of(tmp_path, SHORTEST), (3, 518, 518), fixed=False)
    assert found.input_size == (3, 24, 24)


def test_default_is_squashed():
    assert default_preprocess((3, 8, 12)).crop_mode == "squash"
    with pytest.raises(UnsupportedModelError, match="images with 4 channels are not supported"):
        default_preprocess((4, 8, 8))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"image_processor_type": "ConvNextImageProcessor"}, "its image processor ConvNextImageProcessor"),
        (SQUASH | {"size": 384}, "makes images of 384x384 pixels, but the model takes 24x24"),
        (SQUASH | {"do_resize": False}, "does not resize images"),
        (SQUASH | {"do_pad": True}, "pads images"),
        (SHORTEST | {"do_center_crop": False}, "resizes to {'shortest_edge': 32} and does not crop"),
        (SHORTEST | {"crop_size": {"height": 24, "width": 20}}, "crops to {'height': 24, 'width': 20}"),
        (SHORTEST | {"crop_size": 33}, "resizes to 32x32 pixels and crops to 33x33"),
        (
            SHORTEST | {"image_mean": [0.5]},
            ("has `image_mean` (0.5,), but the model takes images with 3 channels"),
        ),
        (SHORTEST | {"image_std": [0.5, 0.5, 0.0]}, "is not supported: std[2]"),
        (SHORTEST | {"size": {"shortest_edge": 0}}, "has an invalid size, mean, std or factor"),
        (
            SHORTEST | {"size": {"shortest_edge": 10**9}},
            "resizes images to 1000000000 pixels, more than 8192",
        ),
        (SHORTEST | {"rescale_factor": 0}, "has an invalid size, mean, std or factor"),
        (SHORTEST | {"resample": "cubic"}, "has an invalid size, mean, std or factor"),
        (SHORTEST | {"resample": 9}, "is not supported: interpolation"),
    ],
)
def test_what_cannot_be_covered_is_refused_with_the_reason(tmp_path, settings, reason):
    size = 33 if settings.get("crop_size") == 33 else 24
    with pytest.raises(UnsupportedModelError) as caught:
        read_image_processor(
            folder_of(tmp_path, settings),
            (3, size, size),
            fixed=not isinstance(settings.get("crop_size"), dict),
        )
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("text", [None, "{", "[1]", '{"image_processor_type": "None"}', '{"size": "x"}'])
def test_a_folder_without_a_readable_one_says_so(tmp_path, text):
    if text is not None:
        (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        read_image_processor(tmp_path, (3, 24, 24))
    assert "image" in str(caught.value)
    assert "preprocessor_config.json" in caught.value.hint
