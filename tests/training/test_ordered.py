"""Gradients that several processes add: the same bits as one process adds."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
import torch
from torch import nn

from hydractl.training.engine import Engine
from hydractl.training.ordered import OrderedGradients

ROWS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))


class Peer(Engine):
    """One of several processes, which here are threads that put tensors on a table."""

    def __init__(self, rank, world, table, barrier):
        self._at, self._table, self._barrier = (rank, world), table, barrier

    rank = property(lambda self: self._at[0])
    world = property(lambda self: self._at[1])

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
    """Return what each of `world` processes gets."""
    table, barrier, results = [None], Barrier(world), {}

    def work(rank):
        engine, own = Peer(rank, world, table, barrier), parameters()
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
def test_the_number_of_processes_changes_no_bit(world):
    (wanted,) = gradients(1, 4)

    for found in gradients(world, 4):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
