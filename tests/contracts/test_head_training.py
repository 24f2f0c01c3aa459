"""All variants with a classifier: stored features of a frozen encoder give the logits of the whole model."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.base import position_of
from hydractl.families.registry import FAMILIES
from hydractl.fusion.hydra import Hydra
from hydractl.prediction.feature_ood import give_head_inputs, heads_of
from hydractl.training.frozen_encoder import on_features
from hydractl.training.trainable import TrainableModel, TrainingHydra
from support.builders import base
from support.variants import VARIANTS, variant

HYDRAS = (
    "timm-vit-class-token",
    "timm-vit-distilled",
    "transformers-roberta-plain",
    "transformers-eurobert-late",
    "transformers-decoder-qwen3",
)
CLASSIFIERS = [v for v in VARIANTS if len(FAMILIES[v.family].towers) == 1]


def features_of(module, sample, inputs):
    give_head_inputs(module, sample.family)
    with torch.inference_mode():
        return module.member_logits(inputs).transpose(0, 1)


def reading_features(module, sample, masks=1):
    header = sample.header.model_copy(update={"masks": sample.header.masks * masks})
    return on_features(
        TrainableModel(module=module, states=(), header=header, family=FAMILIES[header.architecture.family])
    ).module.eval()


@pytest.mark.spread(alike=True, every=16)
@pytest.mark.parametrize("variant", CLASSIFIERS, ids=str)
def test_the_classifier_on_features_is_the_model(variant):
    sample = base(variant)
    inputs = sample.inputs(batch=3)
    with torch.inference_mode():
        logits = sample.model()(inputs)

        found = reading_features(sample.model(), sample)(features_of(sample.model(), sample, inputs))

    torch.testing.assert_close(found, logits, atol=1e-5, rtol=1e-5)


@pytest.mark.spread
@pytest.mark.parametrize("variant", CLASSIFIERS, ids=str)
def test_the_classifiers_hold_all_that_trains_with_train_head(variant):
    sample = base(variant)
    model = sample.model()

    held = {id(p) for heads in heads_of(model, sample.family) for head in heads for p in head.parameters()}

    named = model.library_state().items()
    assert held == {
        id(t) for n, t in named if t.requires_grad and position_of(sample.family, n).part == "head"
    }


@torch.inference_mode()
@pytest.mark.parametrize("name", HYDRAS)
@pytest.mark.parametrize(
    "own",
    [lambda _: True, lambda name: name.startswith(("head", "classifier", "score"))],
    ids=["all", "heads"],
)
def test_each_member_has_features_and_classifiers_of_its_own(name, own):
    """In training, each member may also have its own samples."""
    sample = base(variant(name))

    def members():
        shared = sample.model().library_state()
        return [
            sample.family.build(
                sample.header.architecture, sample.header.masks[0],
                {n: t if own(n) else shared[n] for n, t in sample.tuned(i).state.items()},
            )
            for i in range(2)
        ]  # fmt: skip

    inputs = sample.inputs(batch=4)
    logits = Hydra(members()).member_logits(inputs)
    features = features_of(Hydra(members()), sample, inputs)

    together = reading_features(TrainingHydra(Hydra(members())), sample, 2)
    apart = reading_features(TrainingHydra(Hydra(members()), by_member=True), sample, 2)
    together.training = apart.training = True

    assert not torch.allclose(logits[0], logits[1])
    torch.testing.assert_close(together(features), logits, atol=1e-5, rtol=1e-5)
    found = apart(torch.cat([features[:2], features[2:]]))
    torch.testing.assert_close(found, torch.stack([logits[0, :2], logits[1, 2:]]), atol=1e-5, rtol=1e-5)
