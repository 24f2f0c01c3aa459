"""Processes that are threads, each with a group of its own."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
from torch.distributed import HashStore, ProcessGroupGloo

from hydractl.families.open_model import open_model
from hydractl.prediction import answers
from hydractl.prediction.inference import responses
from hydractl.processes.distributed import ProcessGroup

CPU = torch.device("cpu")


def together(world, work):
    """Run `work(team)` in each of `world` processes and return what each returned."""
    store = HashStore()
    gate = threading.Barrier(world, timeout=100)

    def process(rank):
        gate.wait()
        group = ProcessGroupGloo(store, rank, world, timedelta(seconds=20))
        gate.wait()  # for all to be connected: else one that ends at once is gone while another still connects
        return work(ProcessGroup(group, rank=rank, world=world, device=CPU))

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(process, rank) for rank in range(world)]]


def as_processes(monkeypatch, stage, references):
    """Let threads of one process be processes of one run of a stage; each sets the team it is of as `team` of what is returned.

    Args:
        monkeypatch: Undoes it.
        stage: The module that starts the team.
        references: The models.
    """
    own, gate, load = threading.local(), threading.Lock(), answers.load_any
    opened = {reference: open_model(reference) for reference in references}

    def one_by_one(*args, **named):
        with gate:  # torch builds models in one thread at a time
            return load(*args, **named)

    monkeypatch.setattr(stage, "start_team", lambda _: contextlib.nullcontext(own.team))
    monkeypatch.setattr(stage, "open_reader", lambda reference, **_: opened[reference])
    monkeypatch.setattr(answers, "load_any", one_by_one)
    return own


def shares(monkeypatch, asking):
    """Return a counter of how many items each thread answers from here on; `asking` is the path of `responses` where it is called."""
    answered = Counter()

    def counted(model, batches, **named):
        def passing():
            for batch in batches:
                answered[threading.get_ident()] += len(batch.indices)
                yield batch

        return responses(model, passing(), **named)

    monkeypatch.setattr(asking, counted)
    return answered
