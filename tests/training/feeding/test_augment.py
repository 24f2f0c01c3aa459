"""Augmentation of tensors equals augmentation of images."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from hydractl.data.preprocess import AUGMENTATIONS, eval_transform
from hydractl.manifest.header import Preprocess
from hydractl.training.feeding import TENSOR_AUGMENTATIONS, EpochDraws, shifted

PREPROCESS = Preprocess(input_size=(3, 6, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), crop_mode="squash")


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (9, 6, 8, 3), generator=generator, dtype=torch.uint8).numpy()
    return [Image.fromarray(p) for p in pixels]


@pytest.fixture(scope="module")
def inputs(images):
    return torch.stack([eval_transform(PREPROCESS)(image) for image in images])


def test_moving_tensors_equals_moving_images(images, inputs):
    moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 2)]
    wanted = [
        eval_transform(PREPROCESS)(
            tv.affine(i, angle=0, translate=[right, down], scale=1, shear=[0, 0], fill=0)
        )
        for i, (down, right) in zip(images, moves, strict=True)
    ]
    black = EpochDraws.of(9, PREPROCESS, seed=0, epoch=0).black

    down, right = torch.tensor(moves).unbind(1)

    assert torch.equal(shifted(inputs, down, right, black), torch.stack(wanted))


def test_mirroring_tensors_equals_mirroring_images(images, inputs):
    draws = EpochDraws.of(9, PREPROCESS, seed=0, epoch=0)
    wanted = [
        eval_transform(PREPROCESS)(tv.horizontal_flip(i) if flip else i)
        for i, flip in zip(images, draws.flip, strict=True)
    ]

    assert 0 < draws.flip.sum() < 9
    assert torch.equal(draws.apply(inputs.clone(), torch.arange(9), ("flip",)), torch.stack(wanted))


def test_a_sample_fares_alike_in_whatever_batch(inputs):
    draws = EpochDraws.of(9, PREPROCESS, seed=1, epoch=2)
    order = torch.tensor([4, 2, 8, 0, 1, 3, 5, 6, 7])

    whole = draws.apply(inputs.clone(), torch.arange(9), ("flip", "shift"))

    assert torch.equal(draws.apply(inputs[order], order, ("shift", "flip")), whole[order])


def test_draws_hang_on_seed_and_epoch():
    def drawn(seed, epoch):
        draws = EpochDraws.of(500, PREPROCESS, seed=seed, epoch=epoch)
        return torch.stack([draws.flip.long(), draws.down, draws.right])

    assert torch.equal(drawn(0, 1), drawn(0, 1))
    assert not torch.equal(drawn(0, 1), drawn(0, 2))
    assert not torch.equal(drawn(0, 1), drawn(1, 1))


def test_one_image_of_five_moves_by_an_eighth_at_most():
    tall = Preprocess(input_size=(1, 80, 8), mean=(0.5,), std=(0.5,))
    draws = EpochDraws.of(20_000, tall, seed=0, epoch=0)

    assert (draws.down != 0).float().mean() == pytest.approx(0.2 * 0.95, abs=0.01)
    assert draws.down.abs().max() == 10
    assert draws.right.abs().max() == 1
    assert draws.flip.float().mean() == pytest.approx(0.5, abs=0.02)


def test_names_are_those_of_the_data_package():
    assert set(AUGMENTATIONS) >= TENSOR_AUGMENTATIONS
