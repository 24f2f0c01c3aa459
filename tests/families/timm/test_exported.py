"""torch.compile and export of timm models with rotary or learned positions."""

from __future__ import annotations

import pytest
import torch

from hydractl.families.tower import largest_difference
from hydractl.fusion.hydra import Hydra
from support.builders import base
from support.variants import variant

KEEP = ((0, 2, 3), (), (1,))
NAMES = (
    "timm-eva-dinov3",
    "timm-eva-rope-mixed",
    "timm-beit-both-and-positions",
    "timm-relpos-networks",
)


@pytest.mark.more
@pytest.mark.newer
@pytest.mark.parametrize(
    "name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.more) for name in NAMES[1:])]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch
def test_compiles_and_exports(name):
    sample = base(variant(name))
    hydra = Hydra([sample.model(), sample.pruned(*KEEP).model()])
    inputs = sample.inputs(batch=3)
    torch._dynamo.reset()
    with torch.inference_mode():
        expected = hydra(inputs).member_logits
        compiled = torch.compile(hydra, backend="aot_eager", fullgraph=True)(inputs)
        assert largest_difference(compiled.member_logits, expected) <= 1e-6
    exported = torch.export.export(hydra, (inputs,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with torch.inference_mode():
        again = exported.module()(sample.inputs(batch=2))
        assert largest_difference(again.member_logits, hydra(sample.inputs(batch=2)).member_logits) <= 1e-6
