"""Pieces of a batch, gradients added over several processes, and cleanup of an engine."""

from __future__ import annotations

import os
from threading import Barrier, Thread

import pytest
import torch
from torch import nn

from hydractl.errors import UsageError
from hydractl.training.accelerator import Engine, OrderedGradients, Share, _laid_out, start_engine


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRADIENT_ACCUMULATION_STEPS", "4"),
        ("DYNAMO_BACKEND", "EAGER"),
        ("MIXED_PRECISION", "bf16"),
        ("TORCH_DEVICE", "meta"),
        ("USE_PARALLELISM_CONFIG", "true"),
        ("USE_MEGATRON_LM", "true"),
        ("USE_DEEPSPEED", "true"),
        ("USE_FSDP", "true"),
    ],
)
def test_what_the_environment_tells_accelerate_changes_nothing(monkeypatch, name, value):
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    model = nn.Linear(2, 1)

    with start_engine("cpu", precision="fp32") as engine:
        prepared = engine.prepare(model)
        loss = prepared(torch.ones(3, 2)).sum()
        engine.backward(loss, prepared, sync=True)
        assert engine.device.type == "cpu"

    assert prepared is model
    assert loss.dtype == torch.float32
    assert model.weight.grad.tolist() == [[3.0, 3.0]]
    assert os.environ[f"ACCELERATE_{name}"] == value


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
    """Engine of a process in a group, for arithmetic only."""

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


ROWS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))


class Meeting(Peer):
    """Engine of a process, run in a thread, with an exchange of tensors through a list."""

    def __init__(self, rank, world, table, barrier):
        super().__init__(rank, world)
        self._table, self._barrier = table, barrier

    def sent(self, tensor, source):
        if self.rank == source:
            self._table[0] = tensor
        self._barrier.wait()
        found = self._table[0].clone()
        self._barrier.wait()
        return found


def parameters():
    generator = torch.Generator().manual_seed(1)
    return {name: nn.Parameter(torch.randn(5, generator=generator)) for name in ("a", "b")}


def gradients(world, pieces):
    """Return the gradients of each of `world` processes."""
    table, barrier, results = [None], Barrier(world), {}

    def work(rank):
        engine, own = Meeting(rank, world, table, barrier), parameters()
        share = engine.cut(pieces)
        ordered = OrderedGradients(engine, own, pieces)
        for begin, end in share.bounds(len(ROWS)):
            ordered.add(
                (ROWS[begin:end] * own["a"]).tanh().mean() + (ROWS[begin:end] @ own["b"]).exp().mean()
            )
        ordered.finish()
        results[rank] = {name: p.grad for name, p in own.items()}

    threads = [Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_the_number_of_processes_changes_no_bit_of_a_gradient(world):
    (wanted,) = gradients(1, 4)

    for found in gradients(world, 4):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
