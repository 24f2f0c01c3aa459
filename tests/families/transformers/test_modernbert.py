"""ModernBERT: local and global layers with separate rotary angles."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.registry import FAMILIES
from hydractl.families.tower import largest_difference
from hydractl.families.transformers.text import ROTATIONS
from support.builders import base
from support.kernels import kernels
from support.variants import VARIANTS, Variant

MODERNBERT = FAMILIES["transformers-modernbert"]
OURS = {v.name: v for v in VARIANTS if v.family == MODERNBERT.name}


@torch.inference_mode()
def test_a_local_layer_sees_its_neighbours_and_a_global_one_everything():
    """The window has half of `local_attention` on each side, plus the token itself."""
    sample = base(OURS["plain"])
    tower = sample.model().tower()
    stream = tower.embed(sample.inputs(batch=1))
    tokens = stream.tokens.shape[1]
    far, near = 12, 3
    for layer, block in enumerate(tower.layers()):
        changed = stream.tokens.clone()
        changed[:, far] += torch.linspace(-1, 1, 32)
        moved = (block.heads(stream.with_tokens(changed)) != block.heads(stream)).flatten(2).any(-1)[0]
        expected = torch.ones(tokens, dtype=torch.bool)
        if layer > 0:
            expected = (torch.arange(tokens) - far).abs() <= near
        assert torch.equal(moved, expected)


def test_local_layers_share_a_mask():
    """The mask is as large as the scores of a head, so three local layers must not create three masks."""
    made = []
    for local in (1, 3):
        options = OURS["plain"].options | {
            "num_hidden_layers": local + 1,
            "layer_types": ["full_attention", *["sliding_attention"] * local],
        }
        sample = base(Variant(MODERNBERT.name, f"{local}-local", "modernbert", options))
        model, inputs = sample.model(), sample.inputs()
        calls = kernels(lambda model=model, inputs=inputs: model(inputs))
        made.append(calls["bitwise_and"] + calls["bitwise_or"])
    assert made[0] == made[1] > 0


@pytest.mark.parametrize("rotation", [r for r in ROTATIONS if r != "default"])
@torch.inference_mode()
def test_scaled_angles(rotation):
    scaling = {
        "rope_type": rotation, "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }  # fmt: skip
    ropes = {
        "full_attention": scaling | {"rope_theta": 160.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    }
    options = OURS["plain"].options | {"rope_parameters": ropes, "max_position_embeddings": 64}
    sample = base(Variant(MODERNBERT.name, rotation, "modernbert", options))
    inputs = sample.inputs(dtype=torch.float64)
    found = sample.model(torch.float64)(inputs)
    assert largest_difference(found, sample.library(torch.float64)(inputs)) <= 1e-10
    plain = base(OURS["plain"])
    assert largest_difference(plain.model(torch.float64)(inputs), found) > 1e-6


@torch.inference_mode()
def test_old_configurations_name_their_layers_by_a_period():
    options = OURS["plain"].options | {"global_attn_every_n_layers": 2, "global_rope_theta": 77.0}
    sample = base(Variant(MODERNBERT.name, "old", "modernbert", options))
    config = sample.header.architecture.config
    assert config["layer_types"] == ["full_attention", "sliding_attention", "full_attention"]
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == 77.0
    inputs = sample.inputs()
    assert largest_difference(sample.model()(inputs), sample.library()(inputs)) <= 1e-5
