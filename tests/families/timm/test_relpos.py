"""timm's models with relative positions: tables and networks with a column per head, per layer or shared."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from hydractl.errors import UnsupportedModelError
from hydractl.families.base import position_of
from hydractl.families.open_model import load_model, open_model
from hydractl.families.registry import family_for_config, family_for_name
from hydractl.families.timm.models import TIMM_BEIT, TIMM_RELPOS
from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from support.builders import base
from support.variants import VARIANTS

KEEP = ((0, 2, 3), (), (1,))
BEIT, RELPOS = (
    {v.name: v for v in VARIANTS if v.family == family.name} for family in (TIMM_BEIT, TIMM_RELPOS)
)
OWN = {
    "beit": (BEIT["tables"], "attn.relative_position_bias_table", 1),
    "relpos-table": (RELPOS["tables"], "attn.rel_pos.relative_position_bias_table", 1),
    "relpos-network": (RELPOS["networks"], "attn.rel_pos.mlp.fc2.weight", 0),
}
SHARED = {
    "beit": (BEIT["one-table"], "rel_pos_bias.relative_position_bias_table", 1),
    "relpos-table": (RELPOS["one-table"], "shared_rel_pos.relative_position_bias_table", 1),
    "relpos-network": (RELPOS["one-network"], "shared_rel_pos.mlp.fc2.weight", 0),
}
own = pytest.mark.parametrize(("variant", "name", "axis"), OWN.values(), ids=OWN)
shared = pytest.mark.parametrize(("variant", "name", "axis"), SHARED.values(), ids=SHARED)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("beitv2_base_patch16_224.in1k_ft_in22k", TIMM_BEIT),
        ("vit_relpos_base_patch16_rpn_224", TIMM_RELPOS),
        ("vit_srelpos_small_patch16_224", TIMM_RELPOS),
    ],
)
def test_the_class_of_a_model_decides_which_family_reads_it(name, family):
    assert family_for_name(name) is family
    assert family_for_config({"architecture": name, "num_classes": 3}, place="m") is family


def test_a_width_that_heads_do_not_fill_is_refused():
    with pytest.raises(UnsupportedModelError, match="its width 30 is not a multiple of its 4 heads"):
        TIMM_BEIT.describe("beit_base_patch16_224", {"embed_dim": 30, "num_heads": 4})


def moved(sample, name, axis, head):
    """Return the sample's model with other numbers in one head's column of a table, or row of a network."""
    state = sample.state | {name: sample.state[name].clone()}
    state[name].select(axis, head).add_(torch.linspace(1, 2, state[name].shape[1 - axis]))
    return sample.family.build(sample.header.architecture, sample.header.masks[0], state)


@own
@torch.inference_mode()
def test_a_layer_s_own_biases_are_cut_with_their_heads(variant, name, axis):
    sample = base(variant)
    member = sample.pruned(*KEEP)
    for layer, kept in enumerate(KEEP):
        full = f"blocks.{layer}.{name}"
        place = position_of(sample.family, full)
        assert place.heads.one_entry
        assert (place.layer, place.part, place.heads.axis) == (layer, "attention", axis)
        assert torch.equal(
            member.state[full], sample.state[full].index_select(axis, torch.tensor(kept).long())
        )
    before = member.model()(member.inputs())
    assert largest_difference(moved(member, f"blocks.0.{name}", axis, 1)(member.inputs()), before) > 1e-4


@shared
@torch.inference_mode()
def test_what_layers_share_stays_whole_and_heads_are_picked_by_number(variant, name, axis):
    member = base(variant).pruned((0, 2, 3), (0,), (0, 2))
    assert torch.equal(member.state[name], base(variant).state[name])
    before = member.model()(member.inputs())
    assert torch.equal(moved(member, name, axis, 1)(member.inputs()), before)  # no layer has this head
    assert largest_difference(moved(member, name, axis, 2)(member.inputs()), before) > 1e-4


@shared
@torch.inference_mode()
def test_members_with_their_own_shared_biases_are_fused_exactly(variant, name, axis):
    del axis
    sample = base(variant)
    members = [sample.pruned(*KEEP).tuned(i, only=lambda n: n == name).model() for i in range(3)]
    found = Hydra(members)(sample.inputs()).member_logits
    for logits, member in zip(found, members, strict=True):
        assert largest_difference(logits, member(sample.inputs())) <= 1e-6
    assert largest_difference(found[0], found[1]) > 1e-4


@own
@torch.inference_mode()
def test_biases_follow_the_model_into_half_precision_and_back(variant, name, axis):
    del name, axis
    sample = base(variant)
    inputs = sample.inputs(dtype=torch.bfloat16)
    built = sample.cast(torch.bfloat16).model(torch.bfloat16)(inputs)
    moved = sample.model().to(torch.bfloat16)(inputs)
    exact = sample.model()(sample.inputs())
    rounding = largest_difference(sample.library(torch.bfloat16)(inputs).float(), exact)
    assert built.dtype == torch.bfloat16
    assert largest_difference(built.float(), moved.float()) <= 1e-2
    assert largest_difference(built.float(), exact) <= max(3 * rounding, 3e-2)


@own
@torch.inference_mode()
def test_heads_cut_while_scoring_leave_the_others_as_they_were(variant, name, axis):
    """Pruning a loaded model keeps names, and does not change the base."""
    del axis
    sample = base(variant)
    model, cut = sample.model(), sample.model()
    for block, kept in zip(cut.tower().layers(), KEEP, strict=True):
        block.attn.members[0] = block.attn.groups()[0].select(kept)
    assert largest_difference(cut(sample.inputs()), sample.pruned(*KEEP).model()(sample.inputs())) <= 1e-6
    assert cut.library_state().keys() == sample.state.keys()
    assert cut.library_state()[f"blocks.2.{name}"].numel() * 4 == sample.state[f"blocks.2.{name}"].numel()
    assert all(torch.equal(x, sample.state[n]) for n, x in model.library_state().items())


@torch.inference_mode()
def test_a_folder_with_the_names_of_beit_s_authors_is_read(tmp_path):
    """The authors also store the index of each table, which timm computes."""
    from timm.models import save_for_hf

    sample = base(BEIT["tables"])
    library = sample.library()
    arguments = {k: v for k, v in BEIT["tables"].options.items() if k != "num_classes"}
    save_for_hf(library, tmp_path, model_args=arguments, safe_serialization=True)
    index = {f"blocks.{i}.attn.relative_position_index": torch.zeros(5, 5).long() for i in range(3)}
    save_file(sample.state | index, tmp_path / "model.safetensors")
    model_file = open_model(str(tmp_path))
    assert model_file.family is TIMM_BEIT
    assert largest_difference(load_model(model_file)(sample.inputs()), library(sample.inputs())) <= 1e-5
