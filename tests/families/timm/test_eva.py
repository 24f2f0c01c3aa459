"""timm's Eva: descriptions, refusals, buffers outside of state dicts, and library folders."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from hydractl.errors import CheckpointError, UnsupportedModelError
from hydractl.families.base import position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import family_for_config, family_for_name
from hydractl.families.timm.models import TIMM_EVA, TIMM_VIT
from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from hydractl.prediction.loaded_model import load
from support.builders import base
from support.variants import TINY, VARIANTS

EVA = {v.name: v for v in VARIANTS if v.family == TIMM_EVA.name}
ROPED = (
    "qkv-apart",
    "dinov3",
    "dinov3-static",
    "rope",
    "rope-mixed",
    "rope-mixed-dynamic",
    "rope-multimodal",
)
KEEP = ((0, 2, 3), (), (1,))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("eva02_tiny_patch14_224", TIMM_EVA),
        ("eva02_tiny_patch14_224.mim_in22k", TIMM_EVA),
        ("vit_small_patch16_dinov3", TIMM_EVA),
        ("vit_pe_core_tiny_patch16_384", TIMM_EVA),
        ("vit_tiny_patch16_224", TIMM_VIT),
        ("eva_large_patch14_196", TIMM_VIT),  # a plain vision transformer in spite of the name
    ],
)
def test_the_class_of_a_model_decides_which_family_reads_it(name, family):
    assert family_for_name(name) is family
    assert family_for_config({"architecture": name, "num_classes": 3}, place="m") is family


def test_described_is_what_was_asked_for():
    described = TIMM_EVA.describe("vit_small_patch16_dinov3", TINY)
    architecture = described.architecture
    tower = architecture.towers["vision"]
    assert (tower.layers, tower.num_heads, tower.head_dim, architecture.num_classes) == (3, 4, 8, 7)
    assert described.preprocess.input_size == (1, 8, 8)
    assert TIMM_EVA.describe(architecture.name, architecture.config) == described


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (
            "eva02_base_patch16_clip_224",
            {},
            ("sub-LN attention: a norm over all heads, whose statistics change when a head is removed"),
        ),
        (
            "vit_5b_patch16_sapiens2",
            {},
            "grouped-query attention: several query heads share one key and value",
        ),
        (
            "vit_small_patch16_rope_224",
            {"patch_drop_rate": 0.5},
            ("it drops patches and their rotary angles in training, separately for each sample"),
        ),
        ("vit_small_patch16_rope_224", {"num_classes": 0}, "it has no classifier; give `num_classes`"),
        ("vit_small_patch16_rope_224", {"depth": 0}, "it has no blocks"),
        (
            "eva_giant_patch14_224",
            {"embed_dim": 30, "num_heads": 4},
            "its width 30 is not a multiple of its 4 heads",
        ),
        (
            "vit_small_patch16_dinov3",
            {"embed_dim": 24, "num_heads": 4, "num_classes": 7},
            "its rotary embedding does not fit heads of width 6",
        ),
        ("vit_small_patch16_rope_224", {"wings": 2}, "`vit_small_patch16_rope_224` has no option `wings`"),
        ("vit_small_patch16_rope_224", {"use_naflex": True}, "has no option `use_naflex`"),
    ],
)
def test_what_cannot_be_covered_is_refused_with_the_reason(name, options, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        TIMM_EVA.describe(name, options)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 3


def test_every_tensor_has_a_place():
    places = {n: position_of(TIMM_EVA, n) for n in base(EVA["dinov3-qkv-bias"]).state}
    assert {n for n, p in places.items() if p.heads is not None and p.layer == 2} == {
        f"blocks.2.attn.{n}" for n in ("qkv.weight", "q_bias", "v_bias", "proj.weight")
    }
    parts = {n: p.part for n, p in places.items() if p.layer in {None, 0}}
    assert parts["patch_embed.proj.weight"] == parts["reg_token"] == parts["cls_token"] == "embed"
    assert parts["blocks.0.gamma_1"] == parts["blocks.0.norm1.weight"] == "norm"
    assert parts["head.weight"] == "head"
    assert position_of(TIMM_EVA, "rope.freqs").part == "embed"
    apart = {n for n in base(EVA["qkv-apart"]).state if position_of(TIMM_EVA, n).heads is not None}
    assert {
        f"blocks.0.attn.{n}" for n in ("q_proj.weight", "q_proj.bias", "k_proj.weight", "v_proj.bias")
    } < apart
    assert "blocks.0.attn.k_proj.bias" not in apart


def test_heads_of_their_own_angles_are_picked_by_number():
    """Members keep the frequencies of all heads: pruning gives no head the angles of another."""
    sample = base(EVA["rope-mixed"])
    member = sample.pruned(*KEEP)
    assert torch.equal(member.state["rope.freqs"], sample.state["rope.freqs"])
    turned = {**member.state, "rope.freqs": member.state["rope.freqs"].clone()}
    turned["rope.freqs"][:, 0, 1] += 1.0  # a head that layer 0 does not have
    with torch.inference_mode():
        found = load_state(member, turned)(member.inputs())
        assert torch.equal(found, member.model()(member.inputs()))
        turned["rope.freqs"][:, 0, 2] += 1.0
        assert not torch.equal(load_state(member, turned)(member.inputs()), found)


def load_state(sample, state):
    return TIMM_EVA.build(sample.header.architecture, sample.header.masks[0], state)


@torch.inference_mode()
def test_members_with_their_own_angles_are_fused_exactly():
    sample = base(EVA["rope-mixed"])
    members = [sample.pruned(*KEEP).tuned(i, only=lambda n: n == "rope.freqs").model() for i in range(3)]
    found = Hydra(members)(sample.inputs()).member_logits
    for logits, member in zip(found, members, strict=True):
        assert largest_difference(logits, member(sample.inputs())) <= 1e-6
    assert largest_difference(found[0], found[1]) > 1e-4


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ROPED)
def test_angles_follow_the_model_into_half_precision_and_back(name):
    sample = base(EVA[name])
    inputs = sample.inputs(dtype=torch.bfloat16)
    with torch.inference_mode():
        built = sample.cast(torch.bfloat16).model(torch.bfloat16)(inputs)
        moved = sample.model().to(torch.bfloat16)(inputs)
        library = sample.library(torch.bfloat16)(inputs)
        exact = sample.model()(sample.inputs())
    assert built.dtype == torch.bfloat16
    assert largest_difference(built.float(), moved.float()) <= 1e-2
    rounding = largest_difference(library.float(), exact)
    assert largest_difference(built.float(), exact) <= max(3 * rounding, 3e-2)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["dinov3", "rope-mixed", "qkv-apart"])
def test_angles_shaken_in_training_are_the_library_s(name):
    variant = EVA[name]
    options = variant.options | {"rope_rescale_coords": 2.0, "rope_shift_coords": 0.5}
    described = TIMM_EVA.describe(variant.arch, options)
    sample = base(variant)
    header = sample.header.model_copy(update={"architecture": described.architecture})
    sample = type(sample)(header, sample.state)
    found = []
    for model in (sample.model(), sample.library()):
        torch.manual_seed(3)
        found.append(model.train()(sample.inputs()).detach())
    assert largest_difference(*found) <= 1e-5
    assert largest_difference(found[0], sample.model()(sample.inputs()).detach()) > 1e-4


def saved(folder, name):
    """Write a folder like timm, and return the sample and timm's model."""
    from timm.models import save_for_hf

    sample = base(EVA[name])
    library = sample.library()
    arguments = {k: v for k, v in EVA[name].options.items() if k != "num_classes"}
    names = {"label_names": list("abcdefg")}
    save_for_hf(library, folder, model_config=names, model_args=arguments, safe_serialization=True)
    return sample, library


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", ["qkv-apart", "dinov3-qkv-bias", "rope-mixed", "pe-map-pool"])
@torch.inference_mode()
def test_a_folder_of_timm_is_read(tmp_path, name):
    sample, library = saved(tmp_path, name)
    model_file = open_model(str(tmp_path))
    assert model_file.family is TIMM_EVA
    assert model_file.header.labels == tuple("abcdefg")
    assert largest_difference(load_model(model_file)(sample.inputs()), library(sample.inputs())) <= 1e-5


def as_eva02(state):
    """Return tensors under the names of EVA-02's authors."""
    renamed = {
        "mlp.norm.": "mlp.ffn_ln.",
        "mlp.fc1_g.": "mlp.w1.",
        "mlp.fc1_x.": "mlp.w2.",
        "mlp.fc2.": "mlp.w3.",
        "q_proj.bias": "q_bias",
        "v_proj.bias": "v_bias",
    }
    return {_replaced(name, renamed): tensor for name, tensor in state.items()}


def as_dinov3(state):
    """Return tensors under the names of DINOv3's authors, with a fused bias and tensors for pretraining."""
    renamed = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "reg_token": "storage_tokens"}
    found = {_replaced(n, renamed): t for n, t in state.items() if not n.endswith(("q_bias", "v_bias"))}
    for layer in range(3):
        attn = f"blocks.{layer}.attn."
        q, v = state[f"{attn}q_bias"], state[f"{attn}v_bias"]
        found[f"{attn}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
    return found | {"mask_token": torch.zeros(1, 32), "rope_embed.periods": torch.zeros(2)}


def _replaced(name, renamed):
    for ours, theirs in renamed.items():
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize(("name", "rename"), [("qkv-apart", as_eva02), ("dinov3-qkv-bias", as_dinov3)])
@torch.inference_mode()
def test_a_folder_with_the_names_of_those_who_trained_it_is_read(tmp_path, name, rename):
    sample, library = saved(tmp_path, name)
    state = rename(sample.state)
    assert not state.keys() >= sample.state.keys()
    save_file(state, tmp_path / "model.safetensors")
    assert largest_difference(load(tmp_path)(sample.inputs()), library(sample.inputs())) <= 1e-5


@pytest.mark.parametrize("strange", ["not.of.timm", "visual.conv1.weight"])
def test_a_folder_that_holds_something_else_is_refused(tmp_path, strange):
    saved(tmp_path, "dinov3")
    save_file({strange: torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks .* tensors of its architecture"):
        open_model(str(tmp_path))


def test_a_folder_without_a_classifier_is_refused_by_name(tmp_path, capfd):
    sample, _ = saved(tmp_path, "dinov3")
    state = {n: t for n, t in sample.state.items() if not n.startswith("head.")}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 2 tensors .* `head.bias`"):
        open_model(str(tmp_path))
    assert capfd.readouterr().out == ""


def test_describing_the_family_loads_no_library():
    code = (
        "import sys; from hydractl.families.timm.models import TIMM_EVA\n"
        "assert TIMM_EVA.towers; assert not {'torch', 'timm', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
