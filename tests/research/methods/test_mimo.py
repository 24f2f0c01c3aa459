"""MIMO: the convolution of the paper, and batches as in torch-uncertainty."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.data.datasets import Content
from hydractl.data.open_dataset import open_data
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.families.base import TensorPosition
from hydractl.research.methods.adapters import Site, parametrize_weight
from hydractl.research.methods.mimo import MimoFeed, Slots, stack_images
from hydractl.research.methods.options import Mimo
from hydractl.training.accelerator import Share
from hydractl.training.feeding import ItemFeed
from support.adapters import adapter_of
from support.builders import base


@pytest.fixture
def layer():
    """Return a convolution with three slots, and its original weight."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 7, 3, stride=2, padding=1)
    plain = conv.weight.detach().clone()
    slots = Slots(conv.weight, 3)
    parametrize_weight(Site(layer=conv, place=None), slots)
    stack_images(conv, slots)
    return conv, slots, plain


def test_slots_begin_with_filters_of_their_own_whose_sum_is_the_weight(layer):
    conv, slots, plain = layer

    assert torch.equal(conv.weight, plain)
    assert (slots.slot_weight.flatten(2).abs().sum(-1) > 0).sum(0).tolist() == [1] * 7


def test_images_of_slots_are_channels_of_one_convolution(layer):
    conv, slots, _ = layer
    slots.slot_weight.data.normal_()
    images = torch.randn(3, 4, 2, 9, 9)
    with slots.seeing(images):
        found = conv(images[0])
    whole = F.conv2d(torch.cat([*images], 1), torch.cat([*slots.slot_weight], 1), conv.bias, 2, 1)
    with slots.seeing([images[0]] * 3):
        alike = conv(images[0])

    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(alike, conv(images[0]))
    torch.testing.assert_close(
        conv(images[0]), F.conv2d(images[0], slots.slot_weight.sum(0), conv.bias, 2, 1)
    )


def test_a_model_that_changes_images_first_is_refused(layer):
    conv, slots, _ = layer
    images = torch.randn(3, 4, 2, 9, 9)
    with (
        slots.seeing(images),
        pytest.raises(
            UsageError, match=("the model transforms images before it embeds them, so it takes only one")
        ),
    ):
        conv(images[0] * 2)


def test_rows_of_a_batch_as_torch_uncertainty_deals_them():
    """Each slot gets every image R times; a share of rows is equal in all slots, and labels match images."""
    preprocess = base().header.preprocess
    items = open_data(DataRef.parse("digits::classes=0-6,limit=40"), content=Content.IMAGES)
    feed = ItemFeed.open(items, list(range(40)), preprocess, augment=(), batch_size=16, seed=3)
    slots = MimoFeed(feed=feed, slots=3, repeat=4, rho=0.25)
    share = Share(0, 2, 2)
    steps, plain = [*slots.steps(1, 3, share)], [*feed.steps(1, 3, share)]

    assert slots.steps_per_epoch == feed.steps_per_epoch
    for piece, before in zip(chain(*steps), chain(*plain), strict=True):
        size = len(before.labels)
        labels = piece.labels.view(3, 4 * size)
        assert (piece.members, piece.weight, piece.total) == (3, before.weight, 4 * before.total)
        assert piece.rows == range(4 * before.first, 4 * (before.first + size))
        assert all(sorted(own.tolist()) == sorted(before.labels.tolist() * 4) for own in labels)
        alike = (labels == labels[0]).all(0)
        assert alike[3 * size :].all()
        assert alike[: 3 * size].float().mean() < 0.5
        seen = dict(zip(before.labels.tolist(), before.inputs, strict=True))
        assert all(
            torch.equal(image, seen[label])
            for image, label in zip(piece.inputs, piece.labels.tolist(), strict=True)
        )
    again = [*slots.steps(2, 3, share)]
    assert torch.equal(again[0][0].labels, steps[1][0].labels)
    assert not torch.equal(steps[0][0].labels, steps[1][0].labels)


def test_only_plain_convolutions_of_the_embedding_see_several_images():
    """Convolutions of hybrid models are other classes, or read the output of another layer."""

    class Standardised(nn.Conv2d):
        pass

    place = TensorPosition(tower="vision", layer=None, part="embed")
    kinds = [nn.Conv2d(2, 4, 2), Standardised(2, 4, 2), nn.Conv2d(2, 4, 2, groups=2), nn.Linear(2, 4)]
    sites = {f"{i}.weight": Site(layer=layer, place=place) for i, layer in enumerate(kinds)}
    sites["blocks"] = Site(layer=kinds[0], place=TensorPosition(tower="vision", layer=0, part="mlp"))

    assert adapter_of(Mimo(), base().header).computed_names(sites, [*sites]) == ["0.weight"]
