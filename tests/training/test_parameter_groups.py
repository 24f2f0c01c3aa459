"""Selection of the tensors to train."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from timm.optim import param_groups_layer_decay

from hydractl.errors import UsageError
from hydractl.families.base import position_of
from hydractl.training.optimizers import rate_scales, reset_head, trainable
from hydractl.training.recipe import PARTS, Recipe
from support.builders import base
from support.variants import VARIANTS


def chosen(**options):
    sample = base()
    state = dict(sample.model().library_state())
    return trainable(sample.family, sample.header.architecture, Recipe(**options), state)


def test_all_parts_together_are_everything():
    assert set(chosen()) == set(base().state)


def test_parts_are_disjoint_and_complete():
    found = [set(chosen(train_parts=(part,))) for part in PARTS]

    assert all(found)
    assert sum(map(len, found)) == len(base().state)
    assert set().union(*found) == set(base().state)


@pytest.mark.parametrize("last", [0, 1, 2, 3])
def test_last_blocks_train_with_readout_and_head(last):
    layers = [position_of(base().family, name).layer for name in chosen(last_blocks=last)]

    assert {layer for layer in layers if layer is not None} == set(range(3 - last, 3))
    assert {"head.weight", "norm.weight"} <= set(chosen(last_blocks=last))
    assert not {"cls_token", "pos_embed", "patch_embed.proj.weight"} & set(chosen(last_blocks=last))


def test_parts_and_blocks_go_together():
    assert all(n.startswith("blocks.2.attn.") for n in chosen(train_parts=("attention",), last_blocks=1))


@pytest.mark.parametrize("frozen", [0, 1, 3])
def test_freezing_the_first_blocks_is_training_the_last(frozen):
    assert chosen(trunk=frozen) == chosen(last_blocks=3 - frozen)


@pytest.mark.parametrize(("options", "said"), [
    ({"last_blocks": 4}, "has 3 blocks"),
    ({"trunk": 4}, "`--trunk 4`: .* has 3 blocks"),
    ({"train_parts": ("mlp",), "trunk": 3}, "nothing would train"),
    ({"train_parts": ("mlp",), "last_blocks": 0}, "nothing would train"),
    ({"train_parts": ("embed",), "last_blocks": 2}, "nothing would train"),
])  # fmt: skip
def test_refusals(options, said):
    with pytest.raises(UsageError, match=said):
        chosen(**options)


def test_a_tensor_without_gradient_never_trains():
    sample = base()
    state = {n: t.detach() for n, t in sample.state.items()}

    with pytest.raises(UsageError, match="nothing would train"):
        trainable(sample.family, sample.header.architecture, Recipe(), state)


NAMED = {str(variant): variant for variant in VARIANTS}


@pytest.mark.parametrize("name", [
    "timm-vit-class-token", "timm-vit-average-pool", "timm-vit-map-pool", "timm-vit-distilled", "timm-vit-pre-norm",
    "timm-eva-qkv-apart", "timm-beit-one-table",
])  # fmt: skip
def test_layer_decay_is_timms(name):
    sample = base(NAMED[name])
    library = sample.library()
    names = {id(p): n for n, p in library.named_parameters()}
    groups = param_groups_layer_decay(library, layer_decay=0.7)
    wanted = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}

    assert rate_scales(sample.family, sample.header.architecture, 0.7, wanted) == pytest.approx(wanted)
    assert len(set(wanted.values())) == 5


BERTS = {
    "bert.embeddings": 4,
    "bert.encoder.layer.0": 3,
    "bert.encoder.layer.2": 1,
    "bert.pooler": 0,
    "classifier": 0,
}
CLIPS = {
    "text_model.embeddings": 3, "text_model.encoder.layers.0": 2, "text_model.final_layer_norm": 1, "text_projection": 0,
    "vision_model.embeddings": 4, "vision_model.pre_layrnorm": 4, "vision_model.encoder.layers.0": 3,
    "vision_model.post_layernorm": 1, "visual_projection": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "powers"),
    [
        ("transformers-bert-plain", {}, BERTS),
        ("transformers-clip-plain", {"text.num_hidden_layers": 2}, CLIPS),
    ],
)
def test_layer_decay_of_post_norm_blocks_and_of_each_tower(name, options, powers):
    sample = base(replace(NAMED[name], options=NAMED[name].options | options))
    found = rate_scales(sample.family, sample.header.architecture, 0.5, sample.state)

    for prefix, power in powers.items():
        own = {scale for tensor, scale in found.items() if tensor.startswith(prefix)}
        assert own == {0.5**power}, prefix


def test_a_reset_head_is_zero_and_all_else_as_it_was():
    sample = base()
    found = reset_head(sample.family, sample.state)

    for name, tensor in sample.state.items():
        wanted = torch.zeros_like(tensor) if name.startswith("head.") else tensor
        assert torch.equal(found[name], wanted)
