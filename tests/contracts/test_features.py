"""Every family, every variant: the features that are seen in passing and the classifier give the logits."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.batches import Batch
from hydractl.families.registry import FAMILIES
from hydractl.families.zero_shot import Contrast, unit
from hydractl.fusion.features import FeatureExtractor
from hydractl.fusion.hydra import Hydra
from support.builders import base
from support.variants import PLAIN, VARIANTS, variant

HYDRAS = (
    "timm-vit-class-token", "timm-vit-distilled", "transformers-roberta-plain", "transformers-eurobert-late", "transformers-clip-plain",
)  # fmt: skip
KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)))


def settled(model):
    """A zero-shot model that has been told seven classes."""
    for seed, answer in enumerate(model.answers):
        if isinstance(answer, Contrast):
            source = torch.Generator().manual_seed(seed)
            answer.settle(unit(torch.randn(7, answer.width, generator=source)))
    return model


def seen(model, sample):
    inputs = sample.inputs(batch=3)
    inputs = inputs["pixel_values"] if len(model.towers) > 1 else inputs
    extractor = FeatureExtractor.of(model, FAMILIES[sample.header.architecture.family], name="model")
    batches = [Batch(inputs, None, torch.arange(3))] * 2
    *_, (indices, said, features) = extractor.responses(batches, name="model", data="data")
    assert indices.tolist() == [0, 1, 2]
    return extractor, said, features


def check(model, sample, *, members):
    extractor, said, features = seen(model, sample)
    assert len(extractor.classifiers()) == members
    found = torch.stack(
        [f @ c.weight.T + c.bias for f, c in zip(features, extractor.classifiers(), strict=True)]
    )
    torch.testing.assert_close(found.double(), said.logits(), atol=1e-4, rtol=1e-4)
    return features


@pytest.mark.spread(alike=True)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_features_and_classifier_give_the_logits(variant):
    sample = base(variant)
    check(settled(sample.model()), sample, members=1)


@pytest.mark.parametrize("name", HYDRAS)
def test_every_member_has_features_of_its_own(name):
    """Of members that differ everywhere, at the temperature of the model; two classifiers, one a token, and zero-shot among them."""
    sample = base(variant(name))
    hydra = settled(Hydra([sample.pruned(*keep).tuned(i).model() for i, keep in enumerate(KEEPS)]))
    hydra.temperature = 0.5

    assert not torch.equal(*check(hydra, sample, members=2))


@pytest.mark.parametrize("layout", ["in turn", "stacked"])
def test_the_layout_does_not_matter(layout):
    sample = base()
    hydra = Hydra([sample.tuned(i).model() for i in range(3)])
    hydra.lay_out(layout)

    check(hydra, sample, members=3)

    assert (hydra.tower().readout._stack == ()) == (layout == "in turn")
    assert not [part for part in hydra.modules() if part._forward_pre_hooks]


def test_a_readout_that_is_shared_runs_once():
    sample = base(PLAIN)
    members = [sample.pruned(*keep) for keep in KEEPS]
    shared = [member.model() for member in members]
    for own, first in zip(shared[1:], shared[:1], strict=True):
        own.tower().readout = first.tower().readout

    check(Hydra(shared), sample, members=2)


def test_members_that_are_the_same_have_the_same_features():
    model = base().model()

    first, second = check(Hydra([model, model]), base(), members=2)

    torch.testing.assert_close(first, second, rtol=0, atol=0)
