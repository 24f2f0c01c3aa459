"""Shares of a batch, and what an engine leaves behind."""

from __future__ import annotations

import os

import pytest
import torch

from hydractl.errors import UsageError
from hydractl.training.engine import Engine, Share, _laid_out, start_engine


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize(("world", "pieces"), [(1, 1), (2, 1), (2, 3), (5, 4)])
def test_shares_cover_the_batch_once(batch, world, pieces):
    bounds = [b for rank in range(world) for b in Share(rank * pieces, pieces, world * pieces).bounds(batch)]

    assert len(bounds) == world * pieces
    assert [row for a, b in bounds for row in range(a, b)] == list(range(batch))
    assert max(b - a for a, b in bounds) - min(b - a for a, b in bounds) <= 1


def test_engines_follow_one_another_with_other_choices():
    before = dict(os.environ)

    for precision in ("bf16", "fp32", "bf16"):
        with start_engine("cpu", precision=precision) as engine:
            assert (engine.device.type, engine.rank, engine.world, engine.leads) == ("cpu", 0, 1, True)
            assert engine.sum([1.5, 2.0]) == [1.5, 2.0]
            engine.wait()

    assert dict(os.environ) == before


def test_a_gradient_gets_its_parameters_strides():
    parameter = torch.nn.Parameter(torch.zeros(1, 1, 4))
    grad = torch.arange(12.0).reshape(1, 3, 4)[:, 1:2]
    assert grad.stride() != parameter.stride()

    found = _laid_out(parameter, grad)

    assert found.stride() == parameter.stride()
    assert torch.equal(found, grad)
    assert _laid_out(parameter, found) is found


def test_an_absent_device_is_refused():
    with pytest.raises(UsageError, match="cuda:97"), start_engine("cuda:97", precision="fp32"):
        pass


class Peer(Engine):
    """One of several processes, for what is arithmetic."""

    def __init__(self, rank, world):
        self._at = rank, world

    rank = property(lambda self: self._at[0])
    world = property(lambda self: self._at[1])


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("pieces", [1, 4, 5])
def test_each_piece_that_is_cut_counts_once_and_every_process_has_some(world, pieces):
    counted = [Peer(0, world).owner(piece, pieces) for piece in range(pieces)]

    assert counted == sorted(counted)
    for rank in range(world):
        share = Peer(rank, world).cut(pieces)
        own = [piece for piece, owner in enumerate(counted) if owner == rank]
        computed = list(range(share.first, share.first + share.pieces))
        assert share.total == pieces
        assert computed == own or (not own and len(computed) == 1 and computed[0] < pieces)
