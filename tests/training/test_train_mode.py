"""Modules in evaluation mode during training."""

from __future__ import annotations

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from hydractl.training.trainer import begin_training


@pytest.mark.parametrize("norm", [
    nn.BatchNorm2d(3), BatchNormAct2d(3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
], ids=lambda norm: type(norm).__name__)  # fmt: skip
def test_running_statistics_are_read_and_not_changed_while_weights_train(norm):
    model = nn.Sequential(norm, nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in norm.named_buffers()}
    x = 3 + torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    wanted = norm.eval()(x)

    begin_training(model)
    found = norm(x)
    found.square().mean().backward()

    assert torch.equal(found, wanted)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.named_buffers())
    assert norm.weight.grad.abs().sum() > 0
    assert model[1].training


def test_a_norm_without_statistics_follows():
    model = nn.Sequential(nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False)).eval()

    begin_training(model)

    assert all(module.training for module in model.modules())
