"""Parts of library models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hydractl.families.tower import part, without_weights
from support.builders import PLAIN, base


@pytest.mark.parametrize("kept", [(), (1,), (0, 1, 2, 3)])
def test_cutting_takes_no_memory_and_gives_the_kept_size(kept):
    sample = base(PLAIN)
    mask = sample.pruned(kept, kept, kept).header.masks[0]
    model = sample.family.build(sample.header.architecture, mask, None)
    (group,) = model.tower().layers()[0].attn.groups()
    assert tuple(group.qkv.weight.shape) == (3 * len(kept) * 8, 32)
    assert tuple(group.proj.weight.shape) == (32, len(kept) * 8)
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_without_weights_computes_buffers():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("angles", torch.arange(3.0), persistent=False)

    with without_weights():
        made = Rotary()
    assert made.layer.weight.device.type == "meta"
    assert made.angles.tolist() == [0, 1, 2]


def test_parts_share_tensors_and_leave_out_the_rest():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), nn.Linear(4, 5))
    first = part(model, lambda name: name.startswith("0.1"))
    assert dict(first.named_parameters()).keys() == {"0.1.weight", "0.1.bias"}
    assert first.get_parameter("0.1.weight") is model[0][1].weight
    assert model[0][0] is not None
