"""timm's vision transformers: descriptions and refusals."""

from __future__ import annotations

import pytest
import torch

from hydractl.errors import UnsupportedModelError
from hydractl.families.registry import FAMILIES, family_for_config, family_of
from hydractl.families.timm.models import TIMM_VIT
from support.builders import base
from support.variants import PLAIN, TINY, variant


def test_described_is_what_was_asked_for():
    described = TIMM_VIT.describe(PLAIN.arch, TINY)
    architecture = described.architecture
    tower = architecture.towers["vision"]
    assert (tower.layers, tower.num_heads, tower.head_dim, architecture.num_classes) == (3, 4, 8, 7)
    assert described.preprocess.input_size == (1, 8, 8)
    assert len(described.preprocess.mean) == 1
    assert TIMM_VIT.describe(architecture.name, architecture.config) == described


def test_random_weights_are_a_function_of_the_seed_and_leave_the_generator_alone():
    architecture = base(PLAIN).header.architecture
    before = torch.get_rng_state()
    one, two, other = (TIMM_VIT.initialise(architecture, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("vit_tiny", {}, "timm has no architecture `vit_tiny`"),
        ("swin_tiny_patch4_window7_224", {}, "class SwinTransformer: not a plain vision transformer"),
        ("cait_xxs24_224", {}, "its talking heads mix the heads with one another"),
        ("vit_dwee_patch16_reg1_gap_256", {}, "each value head has two query and two key heads"),
        ("vit_small_patch16_18x2_224", {}, "a block holds several attentions in parallel"),
        ("vit_base_patch16_xp_224", {}, "attention and MLP share one matrix, in parallel"),
        (
            PLAIN.arch,
            {"scale_attn_norm": True},
            ("sub-LN attention: a norm over all heads, whose statistics change when a head is removed"),
        ),
        (PLAIN.arch, {"num_classes": 0}, "it has no classifier; give `num_classes` and a pooling"),
        (PLAIN.arch, {"global_pool": ""}, "it has no classifier; give `num_classes` and a pooling"),
        (PLAIN.arch, {"wings": 2}, "`vit_tiny_patch16_224` has no option `wings`"),
        (PLAIN.arch, {"embed_dim": 65}, "timm cannot build `vit_tiny_patch16_224`: dim should be"),
    ],
)
def test_what_cannot_be_covered_is_refused_with_the_reason(name, options, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        TIMM_VIT.describe(name, options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_near_name_is_offered():
    with pytest.raises(UnsupportedModelError) as caught:
        TIMM_VIT.describe("vit_tiny", {})
    assert "vit_" in str(caught.value.hint)


def test_every_tensor_has_a_place():
    """Every tensor has a part, and a layer if the tensor is in a block."""
    from hydractl.families.base import position_of

    places = {n: position_of(TIMM_VIT, n) for n in base(variant("distilled")).state}
    assert places["blocks.2.attn.qkv.weight"].heads is not None
    assert (places["blocks.2.attn.qkv.weight"].layer, places["blocks.2.attn.qkv.weight"].part) == (
        2,
        "attention",
    )
    parts = {n: p.part for n, p in places.items() if p.layer in {None, 0}}
    assert parts["patch_embed.proj.weight"] == parts["dist_token"] == parts["pos_embed"] == "embed"
    assert parts["norm.weight"] == "readout"
    assert parts["head.weight"] == parts["head_dist.bias"] == "head"
    assert parts["blocks.0.mlp.fc2.bias"] == "mlp"
    assert parts["blocks.0.norm1.weight"] == parts["blocks.0.norm2.bias"] == "norm"


def test_names_that_begin_alike_are_not_confused():
    from hydractl.families.base import position_of

    assert position_of(TIMM_VIT, "blocks.10.attn.qkv.weight").layer == 10
    assert position_of(TIMM_VIT, "blocks.x.attn.qkv.weight").part == "embed"
    assert position_of(TIMM_VIT, "norm_pre.weight").part == "embed"
    assert position_of(TIMM_VIT, "blocks.0.attn.qkv.weight_extra").heads is None


def test_families_are_found_by_name_and_by_config():
    assert family_of(base(PLAIN).header.architecture) is TIMM_VIT
    unknown = base(PLAIN).header.architecture.model_copy(update={"family": "rwkv"})
    with pytest.raises(UnsupportedModelError, match="family `rwkv` is unknown in this version"):
        family_of(unknown)
    assert family_for_config({"architecture": "x", "num_classes": 3}, place="m") is TIMM_VIT
    with pytest.raises(UnsupportedModelError, match="m: models of type `gpt_bigcode` are not supported"):
        family_for_config({"model_type": "gpt_bigcode"}, place="m")
    for config in ({"architectures": ["BertForSequenceClassification"]}, {}):
        with pytest.raises(UnsupportedModelError, match=r"m: config\.json has neither `model_type`"):
            family_for_config(config, place="m")
    assert all(name == family.name for name, family in FAMILIES.items())


def test_describing_a_family_loads_no_library():
    import subprocess
    import sys

    code = (
        "import sys; from hydractl.families.registry import FAMILIES\n"
        "assert FAMILIES; assert not {'torch', 'timm', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
