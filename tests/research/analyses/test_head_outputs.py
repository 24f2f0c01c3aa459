"""Head outputs of every family: members, alone and in a hydra of both layouts, equal masked bases."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.tower import Contrast, unit
from hydractl.fusion.hydra import Hydra
from hydractl.manifest.head_mask import HeadName
from hydractl.model_inputs import map_inputs
from hydractl.research.analyses.head_outputs import HeadGroup, data_tower, group_outputs
from support.builders import base
from support.variants import variant

NAMES = (
    "timm-vit-class-token",
    "timm-vit-average-pool",
    "transformers-bert-plain",
    "transformers-modernbert-mean-pool",
    "transformers-clip-plain",
)
KEEPS = (((0, 2, 3), (1,), (1, 2)), ((0, 2, 3), (), (0, 3)))


def settled(model):
    for answer in model.answers:
        if isinstance(answer, Contrast):
            answer.set_class_embeddings(
                unit(torch.randn(3, answer.width, generator=torch.Generator().manual_seed(1)))
            )
    return model


def groups(model, member, keep):
    tower = data_tower(model)
    return [
        HeadGroup(member, (HeadName(tower=tower, layer=layer, head=head),)) for layer in range(3) for head in keep[layer]
    ]  # fmt: skip


def asked(sample):
    inputs = sample.inputs(batch=3)
    return (
        inputs["pixel_values"]
        if "vision" in sample.header.architecture.towers and isinstance(inputs, dict)
        else inputs
    )


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", NAMES)
def test_a_member_says_what_the_base_says_whose_other_heads_are_masked(name):
    sample = base(variant(name))
    inputs = asked(sample)
    hydra = settled(Hydra([sample.pruned(*keep).model() for keep in KEEPS]))
    apart = settled(Hydra([sample.pruned(*keep).tuned(i).model() for i, keep in enumerate(KEEPS)]))
    for member, keep in enumerate(KEEPS):
        masked = settled(sample.masked(*keep).model())
        expected = group_outputs(masked, inputs, groups(masked, 0, keep))
        alone = settled(sample.pruned(*keep).model())
        for model, place in ((alone, 0), (hydra, member)):
            found = group_outputs(model, inputs, groups(model, place, keep))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        tuned = settled(sample.pruned(*keep).tuned(member).model())
        expected = group_outputs(tuned, inputs, groups(tuned, 0, keep))
        for layout in ("in turn", "stacked"):
            apart.lay_out(layout)
            found = group_outputs(apart, inputs, groups(apart, member, keep))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "transformers-bert-plain",
        "transformers-bert-mean-pool",
        "transformers-modernbert-mean-pool",
        pytest.param("transformers-ultrabert-mean-pool", marks=pytest.mark.newer),
    ],
)
def test_padding_says_nothing(name):
    """For layers with full attention, and for layers with an attention window."""
    sample = base(variant(name))
    model = sample.model()
    inputs = sample.inputs(batch=2)
    inputs["attention_mask"][:, -2:] = 0
    every = groups(model, 0, ((0, 1, 2, 3),) * 3)
    found = group_outputs(model, map_inputs(lambda x: x[:, :-2], inputs), every)
    torch.testing.assert_close(group_outputs(model, inputs, every), found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["timm-vit-class-token", "transformers-bert-mean-pool"])
def test_members_that_share_heads_but_not_what_these_look_at_are_told_apart(name):
    sample = base(variant(name))
    first = ("blocks.0", "bert.encoder.layer.0")
    models = [sample.tuned(i, only=lambda name: name.startswith(first)).model() for i in range(2)]
    last = [model.tower().layers()[2] for model in models]
    alone = [group_outputs(model, asked(sample), groups(model, 0, ((), (), (1, 3)))) for model in models]
    last[1].attn = last[0].attn
    models[1].tower().embed = models[0].tower().embed
    hydra = Hydra(models)
    assert hydra.tower().fork == 1
    assert hydra.tower().layers()[2].attn is last[0].attn
    for member, expected in enumerate(alone):
        found = group_outputs(hydra, asked(sample), groups(hydra, member, ((), (), (1, 3))))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
