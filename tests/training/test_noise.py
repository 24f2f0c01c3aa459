"""Dropout that hangs on the seed and the step alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hydractl.training.noise import BatchDropout, set_dropout

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.25)
        self.attn_drop = nn.Dropout(0.3)
        self.head_drop = nn.Dropout(0.35)
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))


def run(noise, layer, x, *, step=3, seed=5, first=0, total=None, count=None):
    rows = range(first, first + (count or len(x)))
    with noise.at(seed=seed, step=step, rows=rows, total=total or len(rows), device=CPU):
        return layer(x)


@pytest.fixture
def dropping():
    net = Net().train()
    return set_dropout(net, None), net.drop


def test_pieces_drop_what_the_whole_batch_drops(dropping):
    noise, layer = dropping
    x = torch.ones(7, 4, 3)

    whole = run(noise, layer, x)
    pieces = [run(noise, layer, x[a:b], first=a, total=7) for a, b in ((0, 3), (3, 4), (4, 7))]

    assert torch.equal(torch.cat(pieces), whole)


def test_another_step_or_seed_drops_others(dropping):
    noise, layer = dropping
    x = torch.ones(64, 8)

    assert torch.equal(run(noise, layer, x), run(noise, layer, x))
    assert not torch.equal(run(noise, layer, x), run(noise, layer, x, step=4))
    assert not torch.equal(run(noise, layer, x), run(noise, layer, x, seed=6))


def test_the_global_generator_stays_where_it_was(dropping):
    noise, layer = dropping
    before = torch.get_rng_state()

    run(noise, layer, torch.ones(4, 4))

    assert torch.equal(torch.get_rng_state(), before)


def test_a_share_p_is_dropped_and_the_mean_kept(dropping):
    noise, layer = dropping

    found = run(noise, layer, torch.ones(200, 100))

    assert (found == 0).float().mean() == pytest.approx(0.25, abs=0.02)
    assert found.mean() == pytest.approx(1, abs=0.02)
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])


def test_evaluation_drops_nothing(dropping):
    noise, layer = dropping
    x = torch.ones(4, 4)

    assert run(noise, layer.eval(), x) is x


def test_p_is_set_where_it_belongs():
    net = Net()
    set_dropout(net, 0.1)

    assert net.drop.p == net.inner[1].p == 0.1
    assert net.head_drop.p == 0.35
    assert type(net.attn_drop) is nn.Dropout
    assert net.attn_drop.p == 0.3


def test_without_p_each_layer_keeps_its_own():
    net = Net()
    keys = list(net.state_dict())
    set_dropout(net, None)

    assert (net.drop.p, net.inner[1].p, net.head_drop.p) == (0.25, 0.0, 0.35)
    assert isinstance(net.inner[1], BatchDropout)
    assert list(net.state_dict()) == keys
