"""Decisions of the fuse plan determine shapes, and a hydra can be split into its members."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.checkpoint import TensorSpec
from hydractl.families.timm.models import TIMM_VIT
from hydractl.fusion.plan import (
    fused_spec,
    group_axis,
    member_widths,
    prune_tensor,
    pruned_spec,
    split_members,
    trunk_length,
    unpruned_shape,
    zero_dropped,
)
from hydractl.manifest.head_mask import TowerHeads
from hydractl.manifest.header import Fate, FusePlan, Kind
from support.builders import base, towers_with

ARCHITECTURE = base().header.architecture
keeps = st.tuples(*[st.sets(st.integers(0, 3)).map(lambda s: tuple(sorted(s)))] * 3)


@given(keeps=st.lists(keeps, min_size=1, max_size=4))
@settings(max_examples=40)
def test_splitting_undoes_grouping(keeps):
    """Concatenated tensors of members, split by their head masks, equal the tensors of the members."""
    members = [base().pruned(*keep) for keep in keeps]
    names = sorted(base().state)
    header = base().header.model_copy(update={
        "kind": Kind.HYDRA,
        "masks": tuple(m.header.masks[0] for m in members),
        "plan": FusePlan(fates=dict.fromkeys(names, Fate.GROUPED), trunk=0, mlp="keep"),
    })  # fmt: skip
    state = {n: torch.cat([m.state[n] for m in members], dim=group_axis(TIMM_VIT, n)) for n in names}
    for name in names:
        specs = [TensorSpec("F32", tuple(m.state[name].shape)) for m in members]
        assert fused_spec(TIMM_VIT, name, Fate.GROUPED, specs).shape == tuple(state[name].shape)
    for found, member in zip(split_members(TIMM_VIT, header, state), members, strict=True):
        assert found.keys() == member.state.keys()
        assert all(torch.equal(found[n], t) for n, t in member.state.items())
    for name in names:
        with pytest.raises(ValueError, match=f"tensor {re.escape(name)} has 0 axes, too few to split it"):
            split_members(TIMM_VIT, header, {name: torch.zeros(())})


@given(keep=keeps)
@settings(max_examples=40)
def test_shapes_say_what_slicing_does(keep):
    mask = towers_with(base().header, *keep)
    for name, tensor in base().state.items():
        spec = TensorSpec("F32", tuple(tensor.shape))
        sliced = pruned_spec(TIMM_VIT, ARCHITECTURE, mask, name, spec)
        assert tuple(prune_tensor(TIMM_VIT, ARCHITECTURE, mask, name, tensor).shape) == sliced.shape
        assert unpruned_shape(TIMM_VIT, ARCHITECTURE, mask, name, sliced) == spec.shape


def test_shared_and_merged_keep_their_shape():
    spec = TensorSpec("BF16", (3, 4))
    for fate in (Fate.SHARED, Fate.MERGED):
        assert fused_spec(TIMM_VIT, "blocks.0.mlp.fc1.weight", fate, [spec, spec]) == spec
    assert fused_spec(TIMM_VIT, "scale", Fate.GROUPED, [TensorSpec("F32", ())] * 3).shape == (3,)


@pytest.mark.parametrize(
    ("grouped", "trunk"),
    [
        ([], 3), (["head.weight"], 3), (["norm.bias"], 3), (["blocks.2.attn.proj.weight"], 2),
        (["blocks.2.norm1.weight", "blocks.1.mlp.fc1.bias"], 1), (["blocks.0.norm2.weight"], 0), (["cls_token"], 0),
        (["patch_embed.proj.bias", "head.bias"], 0),
    ],
)  # fmt: skip
def test_trunk_ends_before_the_first_grouped_tensor(grouped, trunk):
    fates = dict.fromkeys(base().state, Fate.SHARED) | dict.fromkeys(grouped, Fate.GROUPED)
    assert trunk_length(TIMM_VIT, fates, ARCHITECTURE.towers) == trunk


def test_merged_tensors_do_not_end_the_trunk():
    assert trunk_length(TIMM_VIT, {"blocks.0.mlp.fc1.weight": Fate.MERGED}, ARCHITECTURE.towers) == 3


def test_lengths_that_do_not_add_up_are_refused():
    header = base().header.model_copy(update={"masks": (towers_with(base().header, (0,), (), (1,)),) * 2})
    assert member_widths(TIMM_VIT, header, "blocks.0.attn.qkv.weight", 48) == [24, 24]
    assert member_widths(TIMM_VIT, header, "blocks.1.attn.qkv.weight", 0) == [0, 0]
    assert member_widths(TIMM_VIT, header, "norm.weight", 64) == [32, 32]
    for name, length in (("blocks.0.attn.qkv.weight", 47), ("norm.weight", 63)):
        with pytest.raises(ValueError, match=f"tensor {name}: members take"):
            member_widths(TIMM_VIT, header, name, length)


def test_indices_of_heads_by_hand():
    qkv, proj = TIMM_VIT.towers["vision"].heads[0], TIMM_VIT.towers["vision"].heads[-1]
    narrow, wide = (TowerHeads(layers=1, num_heads=3, head_dim=width) for width in (1, 2))
    assert proj.index((1,), wide) == [2, 3]
    assert qkv.index((0, 2), narrow) == [0, 2, 3, 5, 6, 8]
    assert qkv.index((), wide) == []
    shared = TowerHeads(layers=1, num_heads=6, head_dim=2, key_heads=3)
    keys = replace(proj, shared=True)
    assert keys.index((0, 1, 4), shared) == [0, 1, 4, 5]
    assert proj.index((0, 4), shared) == [0, 1, 8, 9]


def test_zeroing_touches_the_output_projection_alone():
    mask = towers_with(base().header, (0, 1, 2, 3), (), (1,))
    zeroed = zero_dropped(TIMM_VIT, ARCHITECTURE, mask, base().state)
    changed = {n for n, t in zeroed.items() if not torch.equal(t, base().state[n])}
    assert changed == {"blocks.1.attn.proj.weight", "blocks.2.attn.proj.weight"}
    assert not zeroed["blocks.1.attn.proj.weight"].any()
    assert torch.equal(
        zeroed["blocks.2.attn.proj.weight"][:, 8:16], base().state["blocks.2.attn.proj.weight"][:, 8:16]
    )


def test_a_tensor_of_another_width_is_refused():
    mask = towers_with(base().header, (0,), (0,), (0,))
    with pytest.raises(ValueError, match="axis 0 should be 96"):
        pruned_spec(TIMM_VIT, ARCHITECTURE, mask, "blocks.0.attn.qkv.bias", TensorSpec("F32", (95,)))
    with pytest.raises(ValueError, match="axis 1 should be 32"):
        pruned_spec(TIMM_VIT, ARCHITECTURE, mask, "blocks.0.attn.proj.weight", TensorSpec("F32", (32,)))
    with pytest.raises(ValueError, match="axis 0 should be 24 by its mask"):
        unpruned_shape(TIMM_VIT, ARCHITECTURE, mask, "blocks.0.attn.qkv.bias", TensorSpec("F32", (96,)))
