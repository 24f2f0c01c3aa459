"""Threads in the role of processes, each with a process group."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch.distributed import HashStore, ProcessGroupGloo

from hydractl.families.open_model import open_model
from hydractl.prediction import run_models
from hydractl.prediction.inference import responses
from hydractl.processes.distributed import ProcessGroup

CPU = torch.device("cpu")


def together(world, work):
    """Run `work(team)` in `world` threads and return the results by rank."""
    store = HashStore()
    gate = threading.Barrier(world, timeout=100)

    def process(rank):
        gate.wait()
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=20))
        # All threads must be connected: a thread that ends at once would close its group while others still
        # connect.
        gate.wait()
        return work(ProcessGroup(group, rank=rank, world=world, device=CPU))

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(process, rank) for rank in range(world)]]


def as_processes(monkeypatch, stage, references):
    """Run a stage in threads in the role of processes.

    Args:
        monkeypatch: Undoes the patches.
        stage: Module with `start_team`.
        references: References of the models.

    Returns:
        Thread-local object; each thread sets its `team`.
    """
    own, gate, load = threading.local(), threading.Lock(), run_models.load_any
    opened = {reference: open_model(reference) for reference in references}

    def one_by_one(*args, **named):
        with gate:  # torch cannot build models in several threads at a time.
            return load(*args, **named)

    monkeypatch.setattr(stage, "start_team", lambda _: contextlib.nullcontext(own.team))
    monkeypatch.setattr(stage, "open_reader", lambda reference, **_: opened[reference])
    monkeypatch.setattr(run_models, "load_any", one_by_one)
    return own


def shares(monkeypatch, asking):
    """Count from now on how many items each thread predicts.

    Args:
        monkeypatch: Undoes the patch.
        asking: Path of `responses` in the calling module.

    Returns:
        Counter by thread.
    """
    answered = Counter()

    def counted(model, batches, **named):
        def passing():
            for batch in batches:
                answered[threading.get_ident()] += len(batch.indices)
                yield batch

        return responses(model, passing(), **named)

    monkeypatch.setattr(asking, counted)
    return answered
