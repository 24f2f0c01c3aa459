"""Processes that are threads, each with a group of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch.distributed import HashStore, ProcessGroupGloo

from hydractl.parallel import Team

CPU = torch.device("cpu")


def together(world, work):
    """Run `work(team)` in each of `world` processes and return what each returned."""
    store = HashStore()
    gate = threading.Barrier(world)

    def process(rank):
        gate.wait()
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=20))
        return work(Team(group, rank=rank, world=world, device=CPU))

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(process, rank) for rank in range(world)]]
