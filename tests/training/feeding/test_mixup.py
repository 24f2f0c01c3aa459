"""Mixup and CutMix equal timm's, and do not depend on the pieces of a batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import timm.data.mixup
import torch
from timm.loss import SoftTargetCrossEntropy
from torch.nn.functional import cross_entropy

from hydractl.data.open_dataset import open_data
from hydractl.data.preprocess import sample_seed
from hydractl.errors import UsageError
from hydractl.manifest.header import Preprocess, Tokenization
from hydractl.training.accelerator import Share
from hydractl.training.feeding import _MIXING_STREAM, ItemFeed, Mixing
from hydractl.training.recipe import Recipe

PREPROCESS = Preprocess(input_size=(1, 8, 8), mean=(0.5,), std=(0.5,))
WHOLE = Share(0, 1, 1)
CLASSES = 10


def mixing_of(mixup, cutmix, *, preprocess=PREPROCESS):
    return Mixing.of(Recipe(mixup=mixup, cutmix=cutmix), preprocess, classes=CLASSES)


@pytest.fixture(scope="module")
def feed():
    images = open_data("digits::split=train,limit=50")
    return ItemFeed.open(images, images.labels, PREPROCESS, augment=("shift",), batch_size=16, seed=3)


class Draws:
    """Replacement of `numpy.random` for timm. The first draw, whether to mix at all, is always yes."""

    def __init__(self, step):
        self.own, self.asked = np.random.default_rng(sample_seed(_MIXING_STREAM, 3, step)), False

    def rand(self):
        first, self.asked = not self.asked, True
        return 0.0 if first else self.own.random()

    def beta(self, a, b):
        return self.own.beta(a, b)

    def randint(self, low, high, size):
        return self.own.integers(low, high, size)


@pytest.mark.parametrize(
    ("mixup", "cutmix", "kinds"), [(0.8, None, {True}), (None, 1.0, {False}), (0.8, 1.0, {True, False})]
)
def test_batches_are_what_timm_makes_of_them(feed, monkeypatch, mixup, cutmix, kinds):
    smoothing, mixed = 0.1, replace(feed, mixing=mixing_of(mixup, cutmix))
    theirs = timm.data.mixup.Mixup(
        mixup or 0.0, cutmix or 0.0, label_smoothing=smoothing, num_classes=CLASSES
    )
    changed, blended = [], set()
    for step in range(5):  # an epoch with a smaller last batch, and another step
        ((plain,),) = feed.steps(step, step + 1, WHOLE)
        ((found,),) = mixed.steps(step, step + 1, WHOLE)
        monkeypatch.setattr(timm.data.mixup.np, "random", Draws(step))
        images, targets = theirs(plain.inputs.clone(), plain.labels)
        monkeypatch.undo()
        logits = torch.randn(len(images), CLASSES, generator=torch.Generator().manual_seed(step))
        loss = cross_entropy(logits, found.labels, label_smoothing=smoothing)

        assert torch.equal(found.inputs, images)
        assert torch.allclose(found.labels * (1 - smoothing) + smoothing / CLASSES, targets, atol=1e-6)
        assert loss.item() == pytest.approx(SoftTargetCrossEntropy()(logits, targets).item(), abs=1e-5)
        changed.append(not torch.equal(found.inputs, plain.inputs))
        blended.add(mixed.mixing.at(step, seed=3).box is None)
    assert any(changed)
    assert blended == kinds


@pytest.mark.parametrize(("world", "pieces"), [(2, 2), (1, 5), (40, 1)])
def test_however_a_batch_is_cut_it_is_mixed_alike(feed, world, pieces):
    feed = replace(feed, mixing=mixing_of(0.8, 1.0))
    shares = [list(feed.steps(2, 8, Share(rank * pieces, pieces, world * pieces))) for rank in range(world)]

    for whole, parts in zip(feed.steps(2, 8, WHOLE), zip(*shares, strict=True), strict=True):
        counted = [piece for part in parts for piece in part if piece.weight]
        assert torch.equal(torch.cat([p.inputs for p in counted]), whole[0].inputs)
        assert torch.equal(torch.cat([p.labels for p in counted]), whole[0].labels)


def test_beginning_in_the_middle_mixes_as_the_whole_run_does(feed):
    feed = replace(feed, mixing=mixing_of(0.8, 1.0))
    whole, late = (list(feed.steps(start, 7, WHOLE)) for start in (0, 5))

    assert all(torch.equal(a[0].inputs, b[0].inputs) for a, b in zip(whole[5:], late, strict=True))


def test_both_come_as_often():
    mixing = mixing_of(0.8, 1.0)

    assert 0.4 < np.mean([mixing.at(step, seed=0).box is None for step in range(400)]) < 0.6


def test_a_share_of_each_class_sums_to_one(feed):
    for (piece,) in replace(feed, mixing=mixing_of(None, 1.0)).steps(0, 4, WHOLE):
        assert torch.allclose(piece.labels.sum(1), torch.ones(len(piece.labels)))


def test_nothing_is_mixed_unasked():
    assert mixing_of(None, None) is None
    assert mixing_of(0.0, 0.0) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mixup": 0.8, "cutmix": None}, "`--mixup 0.8`"), ({"mixup": None, "cutmix": 1.0}, "`--cutmix 1`")],
)
def test_texts_are_not_mixed(options, said):
    texts = Tokenization(max_length=8, pad_id=0, vocab_size=9)

    with pytest.raises(UsageError, match=f"{said} is for images, but the model reads texts") as caught:
        mixing_of(**options, preprocess=texts)
    assert "--label-smoothing" in caught.value.hint
