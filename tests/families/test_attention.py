"""The attention module: ragged heads, all or few queries, a single member or several."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention as TimmAttention
from torch import nn

from hydractl.families.attention import Attention, AttentionExtras, HeadGroup, HeadParts, PositionBias
from hydractl.families.timm.modules import head_group
from hydractl.families.tower import largest_difference

ALL = (0, 1, 2, 3)


def library(*, heads=4, bias=True, norm=False, gated=False, proj_bias=True, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        made = TimmAttention(
            24, num_heads=4, attn_head_dim=6, qkv_bias=bias, qk_norm=norm, gated=gated, proj_bias=proj_bias,
            norm_layer=nn.LayerNorm,
        ).double()  # fmt: skip
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return made


flags = st.fixed_dictionaries({k: st.booleans() for k in ("bias", "norm", "gated", "proj_bias")})


@given(
    flags=flags,
    tokens=st.integers(1, 9),
    begin=st.integers(0, 3),
    count=st.integers(1, 9),
    batch=st.integers(1, 3),
)
@settings(max_examples=60)
@torch.inference_mode()
def test_any_queries_give_those_rows_of_the_library_s_answer(flags, tokens, begin, count, batch):
    """Few queries use another formula than many (`_attend_folded`), with the same result."""
    made = library(**flags)
    group = head_group(made, ALL)
    x = torch.randn(batch, tokens, 24, dtype=torch.float64)
    queries = slice(begin, begin + count)
    expected = made(x)
    assert largest_difference(group.project(group.attend(x, None)), expected) <= 1e-12
    asked = expected[:, queries]
    found = group.project(group.attend(x, queries))
    assert found.shape == asked.shape
    if asked.numel():
        assert largest_difference(found, asked) <= 1e-12


@given(flags=flags, kept=st.sets(st.integers(0, 3)))
@settings(max_examples=40)
@torch.inference_mode()
def test_selected_heads_are_those_whose_terms_remain(flags, kept):
    made = library(**flags)
    group = head_group(made, ALL)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    z = group.attend(x, None)
    bias = torch.zeros(24).double() if made.proj.bias is None else made.proj.bias
    expected = sum((group.head_term(z, h) for h in sorted(kept)), torch.zeros(2, 5, 24).double()) + bias
    selected = group.select(sorted(kept))
    assert selected.heads == len(kept)
    for queries in (None, slice(0, 1)):
        found = selected.project(selected.attend(x, queries))
        assert largest_difference(found, expected if queries is None else expected[:, queries]) <= 1e-12


@torch.inference_mode()
def test_members_lie_side_by_side():
    groups = [head_group(library(seed=i), ALL).select(kept) for i, kept in enumerate([[0, 2, 3], [], [1]])]
    attention = Attention(groups)
    x = torch.randn(3 * 2, 5, 24, dtype=torch.float64)
    for queries in (None, slice(0, 1)):
        z = attention.heads(x, queries)
        tokens = 5 if queries is None else 1
        assert z.shape == (2, tokens, 4, 6)
        expected = torch.cat(
            [g.project(g.attend(part, queries)) for g, part in zip(groups, x.split(2), strict=True)]
        )
        assert largest_difference(attention.project(z), expected) <= 1e-12


@torch.inference_mode()
def test_no_heads_leave_the_bias_alone():
    group = head_group(library(), ALL).select([])
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    found = group.project(group.attend(x, None))
    assert torch.equal(found, group.proj.bias.expand(2, 5, 24))


def biased(*, tokens=5, positions=7, seed=0):
    """Return four heads with a table of relative positions, and the bias (H, T, T) from the table."""
    made = library(seed=seed)
    table = nn.Parameter(torch.randn(positions, 4, dtype=torch.float64))
    index = torch.randint(positions, (tokens, tokens))
    parts = HeadParts(
        head_numbers=ALL,
        head_dim=6,
        scale=6**-0.5,
        qkv=made.qkv,
        proj=made.proj,
        bias=PositionBias(table, index),
    )
    return HeadGroup(parts), torch.stack([table[index, h] for h in ALL])


def with_scores(group, x, bias):
    """Compute every head's output (B, T, H, K) with a bias (H, T, T) of the scores, step by step."""
    q, k, v = group.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * 6**-0.5 + bias
    return (scores.softmax(-1) @ v).transpose(1, 2)


@given(
    kept=st.sets(st.integers(0, 3)),
    begin=st.integers(0, 4),
    count=st.integers(1, 5),
    shared=st.booleans(),
)
@settings(max_examples=40)
@torch.inference_mode()
def test_a_table_of_positions_is_added_to_the_scores_and_cut_with_its_heads(kept, begin, count, shared):
    group, table = biased()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    beside = torch.randn(1, 4, 5, 5, dtype=torch.float64) if shared else None
    expected = with_scores(group, x, table if beside is None else table + beside[0])
    selected = group.select(sorted(kept))
    for queries in (None, slice(begin, begin + count)):
        asked = expected if queries is None else expected[:, queries]
        found = selected.attend(x, queries, AttentionExtras(bias=beside))
        assert found.shape == (2, asked.shape[1], len(kept), 6)
        if kept:
            assert largest_difference(found, asked[:, :, sorted(kept)]) <= 1e-12
    assert selected.bias.table.shape == (7, len(kept))


@torch.inference_mode()
def test_attention_weights_know_the_table():
    group, table = biased()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    q, k, _ = group.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
    expected = (q @ k.transpose(-1, -2) * 6**-0.5 + table).softmax(-1)
    assert largest_difference(group.weights(x), expected) <= 1e-12


def test_sides_are_never_sliced(monkeypatch):
    """Dynamo of torch 2.7 and 2.8 cannot slice a NamedTuple, and could not compile a hydra."""

    def refuse(side, index):
        raise TypeError(f"side[{index}]")

    monkeypatch.setattr(AttentionExtras, "__getitem__", refuse, raising=False)
    group = head_group(library(), ALL)
    x, rope = torch.randn(2, 5, 24, dtype=torch.float64), torch.randn(2, 2, 1, 5, 6, dtype=torch.float64)
    for side in AttentionExtras(rope=rope).split(2):
        assert group.attend(x, slice(0, 1), side).shape == (2, 1, 4, 6)
