"""Packed-Ensembles: grouped layers equal narrow models."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.families.registry import family_for_name
from hydractl.model_source import parse_arch
from hydractl.research.methods.options import Packed
from hydractl.research.methods.packed import narrow_reference
from support.builders import base
from support.variants import TIMM_VIT, TINY, Variant

NARROW = Variant("timm-vit", "class-token", TIMM_VIT["class-token"][0], TINY)


def grouped(x, weights, biases):
    """Compute torch-uncertainty's `PackedLinear`: one weight per group of features (`einsum`)."""
    parts = x.unflatten(-1, (len(weights), -1))
    return torch.einsum("...mi,moi->...mo", parts, torch.stack(weights)).flatten(-2) + torch.cat(biases)


def test_layers_in_groups_are_narrow_models_side_by_side():
    """A block with grouped linear layers, grouped norms and M times the heads (`PackedVit` with alpha = M)."""
    members = [base(NARROW).tuned(seed).model() for seed in range(3)]
    blocks = [member.tower().layers()[0] for member in members]
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    whole = x.repeat(1, 1, 3)

    def layer(x, *path):
        own = [block.get_submodule(".".join(path)) for block in blocks]
        return grouped(x, [m.weight for m in own], [m.bias for m in own])

    def norm(x, name):
        own = [getattr(block, name) for block in blocks]
        weight, bias = (torch.cat([getattr(m, kind) for m in own]) for kind in ("weight", "bias"))
        return F.group_norm(x.flatten(0, 1), 3, weight, bias, own[0].eps).view(x.shape)

    with torch.no_grad():
        expected = [
            member.tower()
            .layers()[0]
            .attn.groups()[0]
            .project(block.attn.groups()[0].attend(block.norm1(x), None))
            for member, block in zip(members, blocks, strict=True)
        ]
        qkv = layer(norm(whole, "norm1"), "attn", "members", "0", "qkv")
        each = (t.flatten(-2).unflatten(-1, (12, 8)) for t in qkv.unflatten(-1, (3, 3, 32)).unbind(-2))
        q, k, v = (t.transpose(1, 2) for t in each)
        z = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        y = layer(z, "attn", "members", "0", "proj")
        after = whole + y
        mlp = layer(F.gelu(layer(norm(after, "norm2"), "mlp", "fc1")), "mlp", "fc2")
        found = after + mlp
        alone = []
        for block, own in zip(blocks, expected, strict=True):
            stream = x + own
            alone.append(stream + block.mlp(block.norm2(stream)))

    torch.testing.assert_close(y, torch.cat(expected, -1))
    torch.testing.assert_close(found, torch.cat(alone, -1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (
            "bert::hidden_size=774,intermediate_size=3096,num_attention_heads=12",
            {"hidden_size": 516, "intermediate_size": 2064},
        ),
        ("distilbert::dim=774,hidden_dim=3096,n_heads=12", {"dim": 516, "hidden_dim": 2064}),
        ("vit_base_patch16_224::embed_dim=774,depth=1", {"embed_dim": 516, "depth": 1}),
        (
            "vit_base_patch16_224::img_size=[64,96],embed_dim=774,depth=1",
            {"embed_dim": 516, "img_size": [64, 96]},
        ),
    ],
)
def test_widths_of_members_whatever_they_are_called(name, sizes):
    """Hydra Ensembles: width 774, with 516 for each of three members with 12 heads (`PackedVit`)."""
    found = narrow_reference(f"arch:{name}", Packed()).removeprefix("arch:")
    (tower,) = (
        family_for_name(name.partition("::")[0]).describe(*parse_arch(found)).architecture.towers.values()
    )

    assert sizes.items() <= parse_arch(found)[1].items()
    assert (tower.num_heads, tower.head_dim) == (12, 43)
