"""All variants: a pruned model equals the base with zeroed projection columns of the dropped heads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.families.head_slicing import TensorRole
from hydractl.families.tower import largest_difference
from hydractl.stages.prune.config import PruneConfig
from hydractl.stages.prune.run import run_prune
from support.builders import base, mask_file, over_classes
from support.variants import PLAIN, READERS, VARIANTS, variant

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
RAGGED = {
    "ragged": ((0, 2, 3), (), (1,)),
    "none-left": ((), (), ()),
    "first-empty": ((), (0, 1, 2, 3), (0, 3)),
    "last-empty": ((1, 2), (3,), ()),
}
ALL = ((0, 1, 2, 3),) * 3


@pytest.mark.spread(alike=True, every=12)
@every_variant
@pytest.mark.parametrize("keep", RAGGED.values(), ids=RAGGED)
@torch.inference_mode()
def test_pruned_equals_masked(variant, keep):
    sample = base(variant)
    inputs = sample.inputs()

    pruned = sample.pruned(*keep).model()(inputs)

    masked = sample.masked(*keep).model()(inputs)
    assert largest_difference(pruned, masked) <= 1e-5
    assert largest_difference(masked, sample.model()(inputs)) > 1e-3  # the dropped heads have an effect


@pytest.mark.spread(alike=True, every=8)
@every_variant
@torch.inference_mode()
def test_masked_in_our_view_is_masked_in_the_library(variant):
    """Check of the reference: the library's own model with zeroed columns."""
    masked = base(variant).masked(*RAGGED["ragged"])
    inputs = masked.inputs(dtype=torch.float64)
    pruned = base(variant).pruned(*RAGGED["ragged"]).model(torch.float64)
    multi_label = masked.header.architecture.task.by_label
    expected = over_classes(masked.library(torch.float64)(inputs), multi_label=multi_label)
    assert largest_difference(pruned(inputs), expected) <= 1e-10


@pytest.mark.spread(alike=True, every=8)
@every_variant
@torch.inference_mode()
def test_keeping_every_head_changes_nothing(variant):
    sample = base(variant)
    kept = sample.pruned(*ALL)
    assert all(torch.equal(kept.state[name], tensor) for name, tensor in sample.state.items())
    assert torch.equal(kept.model()(sample.inputs()), sample.model()(sample.inputs()))


@pytest.mark.spread(families=(*READERS, "transformers-vit"))
@every_variant
def test_the_stage_prunes_it(variant, tmp_path):
    """`run_prune` with verification, sizes and costs."""
    sample, keep = base(variant), RAGGED["ragged"]
    mask = mask_file(tmp_path / "m.json", sample.header, *keep)

    report = run_prune(
        PruneConfig(model=str(sample.save(tmp_path / "base.st")), masks=(mask,), out=tmp_path / "member.st")
    )

    (found,) = report.members
    member = sample.pruned(*keep).model()
    assert found.size.parameters == sum(p.numel() for p in member.parameters())
    assert 0 < found.size.macs < report.base.macs
    assert found.largest_difference <= 1e-5


@given(
    keep=st.tuples(*[st.sets(st.integers(0, 3)).map(lambda s: tuple(sorted(s)))] * 3), seed=st.integers(0, 99)
)
@settings(max_examples=25)
def test_pruning_any_heads_equals_masking_them(keep, seed):
    sample = base(PLAIN)
    inputs = sample.inputs(seed=seed, dtype=torch.float64)
    with torch.inference_mode():
        pruned = sample.pruned(*keep).model(torch.float64)(inputs)
        masked = sample.masked(*keep).model(torch.float64)(inputs)
    assert largest_difference(pruned, masked) <= 1e-12


@pytest.mark.spread(alike=True, every=8)
@every_variant
def test_a_member_reads_as_the_library_s_model_with_fewer_rows(variant):
    """Names are equal. Tensors without a head axis are unchanged; the others lack the dropped heads."""
    sample = base(variant)
    member = sample.pruned(*RAGGED["ragged"])
    assert member.state.keys() == sample.library().state_dict().keys()
    with_heads = {
        layout.block.format(layer=i) + h.name: (i, h)
        for layout in sample.family.towers.values()
        for i in range(3)
        for h in layout.heads
    }
    for name, tensor in sample.state.items():
        if name not in with_heads:
            assert torch.equal(member.state[name], tensor)
            continue
        layer, heads = with_heads[name]
        entries = heads.copies * (
            1 if heads.one_entry else 8
        )  # grouped-query attention has fewer heads of keys and values
        sharing = 4 * entries // tensor.shape[heads.axis]
        kept = sorted({head // sharing for head in RAGGED["ragged"][layer]})
        parts = tensor.unflatten(
            heads.axis, (heads.copies, 4 // sharing, entries // heads.copies)
        ).index_select(heads.axis + 1, torch.tensor(kept, dtype=torch.long))
        assert torch.equal(member.state[name], parts.flatten(heads.axis, heads.axis + 2))


def test_a_member_runs_in_timm_s_own_attention():
    """timm's `Attention` accepts a head width, so tensors of a member load unchanged."""
    from timm.layers import Attention

    member = base(variant("class-token")).pruned((0, 3), (1,), (0, 1, 2))
    library = base(variant("class-token")).library()
    for block, heads in zip(library.blocks, (2, 1, 3), strict=True):
        block.attn = Attention(32, num_heads=heads, attn_head_dim=8, qkv_bias=True)
    library.load_state_dict(member.state, strict=True)
    with torch.inference_mode():
        found = library.eval()(member.inputs())
        assert largest_difference(found, member.model()(member.inputs())) <= 1e-5


def test_a_gate_is_cut_with_its_heads():
    """Only the attention module is tested, because no vision transformer of timm has the option `gated`."""
    from timm.layers import Attention

    from hydractl.families.timm.modules import head_group

    torch.manual_seed(0)
    library = Attention(
        32, num_heads=4, qkv_bias=True, qk_norm=True, gated=True, norm_layer=torch.nn.LayerNorm
    )
    x = torch.randn(2, 5, 32)
    with torch.inference_mode():
        group = head_group(library, (0, 1, 2, 3))
        assert largest_difference(group.project(group.attend(x, None)), library(x)) <= 1e-6
        read = group.project(group.attend(x, slice(0, 2)))
        assert largest_difference(read, library(x)[:, :2]) <= 1e-6
        kept = group.select([0, 2])
        library.proj.weight.unflatten(1, (4, 8))[:, [1, 3]] = 0
        assert largest_difference(kept.project(kept.attend(x, None)), library(x)) <= 1e-6


def test_the_layout_names_every_role():
    layout = base(PLAIN).family.towers["vision"]
    assert {h.role for h in layout.heads} == set(TensorRole)
