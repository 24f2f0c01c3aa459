"""Parameters and multiply-accumulates equal hand counts, on the CPU and on the meta device."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from hydractl.metrics.cost import count_macs, count_parameters


def test_a_shared_parameter_counts_once():
    first, second = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)
    second.weight = first.weight

    assert count_parameters(nn.Sequential(first, second)) == 3 * 4 + 4


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_counted_by_hand(device):
    batch, heads, tokens, width = 2, 3, 5, 4
    q = torch.zeros(batch, heads, tokens, width, device=device)

    macs = count_macs(nn.functional.scaled_dot_product_attention, q, q, q)

    assert macs == 2 * batch * heads * tokens * tokens * width


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_fused_inference_path_is_counted(device):
    tokens, width = 5, 8
    attention = nn.MultiheadAttention(width, 2, batch_first=True, device=device).eval()
    x = torch.zeros(1, tokens, width, device=device)

    macs = count_macs(lambda x: attention(x, x, x, need_weights=False), x)

    assert macs == 4 * tokens * width * width + 2 * tokens * tokens * width
    assert torch.backends.mha.get_fastpath_enabled()


def test_vit_base_costs_what_the_literature_says():
    with torch.device("meta"):
        model = timm.create_model("vit_base_patch16_224").eval()
    tokens, width, patches = 197, 768, 196
    block = 12 * tokens * width * width + 2 * tokens * tokens * width

    macs = count_macs(model, torch.empty(1, 3, 224, 224, device="meta"))

    # Patch embedding, twelve blocks and the classifier of the class token.
    assert macs == patches * 3 * 16 * 16 * width + 12 * block + width * 1000
    assert round(macs / 1e9, 2) == 17.56


def test_macs_grow_with_the_batch():
    layer = nn.Linear(3, 4)

    assert count_macs(layer, torch.zeros(7, 3)) == 7 * count_macs(layer, torch.zeros(1, 3)) == 7 * 3 * 4
