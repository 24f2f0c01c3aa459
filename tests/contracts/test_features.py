"""All variants: the classifier on the features of a readout gives the logits."""

from __future__ import annotations

import pytest
import torch

from hydractl.data.batches import Batch
from hydractl.families.registry import FAMILIES
from hydractl.families.stream import FeatureLinear
from hydractl.families.tower import Contrast, unit
from hydractl.fusion.hydra import Hydra
from hydractl.metrics.per_sample import Responses
from hydractl.prediction.feature_ood import FeatureExtractor
from hydractl.prediction.inference import responses
from support.builders import base
from support.variants import OF_CLASSES, PLAIN, variant

HYDRAS = (
    "timm-vit-class-token", "timm-vit-distilled", "transformers-roberta-plain", "transformers-eurobert-late", "transformers-decoder-qwen3", "transformers-clip-plain",
)  # fmt: skip
KEEPS = (((0, 2, 3), (), (1,)), ((), (1, 2), (0, 3)))


def settled(model):
    """Give a zero-shot model seven classes, and return the model."""
    for seed, answer in enumerate(model.answers):
        if isinstance(answer, Contrast):
            source = torch.Generator().manual_seed(seed)
            answer.set_class_embeddings(unit(torch.randn(7, answer.width, generator=source)))
    return model


def seen(model, sample):
    inputs = sample.inputs(batch=3)
    inputs = inputs["pixel_values"] if len(model.towers) > 1 else inputs
    extractor = FeatureExtractor.of(model, FAMILIES[sample.header.architecture.family], name="model")
    batches = [Batch(inputs, torch.arange(3))] * 2
    *_, (indices, *said, features) = responses(extractor, batches, name="model", data="data")
    assert indices.tolist() == [0, 1, 2]
    return extractor, Responses(*said), features


def check(model, sample, *, members):
    extractor, said, features = seen(model, sample)
    assert len(extractor.classifiers()) == members
    found = torch.stack(
        [f @ c.weight.T + c.bias for f, c in zip(features, extractor.classifiers(), strict=True)]
    )
    torch.testing.assert_close(found.double(), said.logits(), atol=1e-4, rtol=1e-4)
    return features


@pytest.mark.spread(alike=True, every=16)
@pytest.mark.parametrize("variant", OF_CLASSES, ids=str)
def test_features_and_classifier_give_the_logits(variant):
    sample = base(variant)
    check(settled(sample.model()), sample, members=1)


@pytest.mark.parametrize("name", HYDRAS)
def test_every_member_has_features_of_its_own(name):
    """Members without shared tensors, at a temperature, including token classifiers and zero-shot models."""
    sample = base(variant(name))
    hydra = settled(Hydra([sample.pruned(*keep).tuned(i).model() for i, keep in enumerate(KEEPS)]))
    hydra.temperature = 0.5

    assert not torch.equal(*check(hydra, sample, members=2))


@pytest.mark.parametrize("layout", ["in turn", "stacked"])
@pytest.mark.parametrize("name", HYDRAS)
def test_the_layout_does_not_matter(layout, name):
    """Features need no hooks, and the readout is stacked in the stacked layout."""
    sample = base(variant(name))
    hydra = settled(Hydra([sample.tuned(i).model() for i in range(3)]))
    hydra.lay_out(layout)
    *_, plain = seen(hydra, sample)

    features = check(hydra, sample, members=3)
    hydra.lay_out(layout)  # stacks the new readouts

    torch.testing.assert_close(check(hydra, sample, members=3), features)
    torch.testing.assert_close(plain, features)
    assert (hydra.tower([*hydra.towers][-1]).readout._stack == ()) == (layout == "in turn")
    assert not [part for part in hydra.modules() if part._forward_pre_hooks or part._forward_hooks]


@pytest.mark.spread(cases=1)
@pytest.mark.newer  # torch 2.5 cannot trace deferred dropout or mapping proxies
@torch.inference_mode()
@pytest.mark.parametrize("name", ["timm-vit-distilled", "transformers-clip-plain"])
def test_features_come_out_of_one_graph(name):
    sample = base(variant(name))
    hydra = settled(Hydra([sample.tuned(i).model() for i in range(2)]))
    hydra.lay_out("stacked")
    extractor, said, features = seen(hydra, sample)
    inputs = sample.inputs(batch=3)
    torch.compiler.reset()

    run = torch.compile(extractor.outputs, backend="eager", fullgraph=True)
    logits, compiled = run(inputs["pixel_values"] if len(hydra.towers) > 1 else inputs)

    torch.testing.assert_close(compiled, features)
    torch.testing.assert_close(logits.double(), said.logits(), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("name", HYDRAS)
def test_a_readout_that_gives_features_has_the_logits_of_before(name):
    sample = base(variant(name))
    hydra = settled(Hydra([sample.tuned(i).model() for i in range(2)]))
    inputs = sample.inputs(batch=3)
    before, names = hydra(inputs), [*hydra.state_dict()]

    _, _, features = seen(hydra, sample)

    after = hydra(inputs)
    torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    assert [*hydra.state_dict()] == names
    layers = [part for part in hydra.modules() if isinstance(part, FeatureLinear)]
    read = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    hydra(inputs)
    assert bool(layers) == (len(hydra.towers) == 1)
    if layers and read[0].ndim == 2:  # excludes classifiers of each token
        members = [torch.cat(part, -1) for part in zip(*[iter(read)] * (len(layers) // 2), strict=True)]
        assert torch.equal(torch.stack(members), features)


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
