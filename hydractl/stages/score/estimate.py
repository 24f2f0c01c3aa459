"""score --estimate: what would a circuit search take?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from hydractl.heads.budget import total_heads
from hydractl.manifest.head_mask import HeadId
from hydractl.model_inputs import batch_of
from hydractl.processes.distributed import ProcessGroup, own_device, require_one_process
from hydractl.progress import SILENT, Progress
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.lazy_greedy import trials_of
from hydractl.scoring.circuit.local_search import PATIENCE
from hydractl.scoring.circuit.settings import RECHECK, CircuitSettings
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.stages.score.config import Estimate, ScoreConfig
from hydractl.stages.score.run import amounts, make_job, open_base, open_inputs, scored_towers
from hydractl.stages.score.training import State
from hydractl.stages.shared.time_and_memory import highest_bytes, seconds_of

DEVICES = (1, 2, 4, 8, 16)
BATCHES, LAYERS, AT_ONCE = 2, 3, 4
"""Number of batches per set, of layers per tower before its last, and of heads per layer that are measured."""
LAZY_SHARE = 0.25
"""Fraction of the evaluations of an exact step that a lazy step makes: a fifth of 48 heads, two fifths of 24."""


class Timed(NamedTuple):
    """Seconds for all samples: of a pass, and of a candidate in each layer of each tower; and those to compile, once."""

    full_pass: float
    layers: dict[str, list[float]]
    compiling: float


def run_estimate(config: ScoreConfig, progress: Progress = SILENT) -> Estimate:
    """Value a few candidates on a few batches, and say what the search would take; write nothing.

    Raises:
        InputError: If the model or the data cannot be used.
        UsageError: If several processes are to do it, or the options do not fit the model.
    """
    require_one_process("score --estimate")
    opened = open_base(config)
    scored = scored_towers(config, opened.header.architecture)
    _, removals = amounts(config, scored, progress)
    inputs = open_inputs(config, opened, progress)
    job = replace(make_job(config, inputs, ProcessGroup(), State(), progress), budget=removals)
    counts = {role: len(items_of_role) for role, items_of_role in inputs.sets.items()}
    counts["id"] = min(counts["id"], config.sample_limit or counts["id"])
    batches = {role: math.ceil(count / config.batch_size) for role, count in counts.items()}
    few = {
        role: _spread(data, batches.get(role, 0))
        for role, data in (("id", job.id_data), ("ood", job.ood_data))
    }
    measured = sum(
        batch_of(samples.inputs) for batches_of_role in few.values() for samples in batches_of_role
    )
    progress.step(f"Measuring on {measured} of {sum(counts.values())} samples")
    job_of_few = replace(job, id_data=few["id"], ood_data=few["ood"])
    with torch.inference_mode():
        # what a compiler takes is not what a search takes
        circuit = Circuit(replace(job_of_few, compiles=None))
        heads = [head for head in circuit.candidates() if head.layer == 0]
        memory = highest_bytes(circuit.model.device, partial(circuit.outcomes, heads))
        seconds = _timed(Circuit(job_of_few), sum(counts.values()) / measured)
    candidates, total = _summed(job, seconds, heads=total_heads(scored))
    dealt = sum(batches.values())
    measured_bytes = sum(_bytes(samples) for batches_of_role in few.values() for samples in batches_of_role)
    batch_bytes = measured_bytes * sum(counts.values()) // measured
    weights = sum(p.nbytes for p in job.model.parameters())
    return Estimate(
        removals=removals,
        candidates=candidates,
        passes=total / seconds.full_pass,
        samples=sum(counts.values()),
        seconds=seconds.compiling + total,
        compiling=seconds.compiling,
        memory=memory + batch_bytes + weights,
        by_devices={
            n: seconds.compiling + total * (math.ceil(dealt / n) / dealt) for n in DEVICES if n <= dealt
        },
        device=str(own_device(config.device)),
    )


def _spread(data: Iterable[Samples], count: int) -> list[Samples]:
    """Return some batches from all over a set: texts come by length."""
    positions = {(2 * i + 1) * count // (2 * BATCHES) for i in range(BATCHES)}
    return [samples for i, samples in enumerate(data) if i in positions]


def _timed(circuit: Circuit, times: float) -> Timed:
    """Return seconds for so many times the samples that a circuit has."""
    device = circuit.model.device
    full_pass, warming = seconds_of(device, circuit.evaluate, forget=circuit.forget)
    layer_costs: dict[str, list[float]] = {}
    for name in circuit.towers:
        remaining = circuit.left[name]
        last = len(remaining) - 1
        layers = sorted({round(i * max(0, last - 1) / (LAYERS - 1)) for i in range(LAYERS)} | {last})
        costs = []
        for layer in layers:
            heads = [HeadId(name, layer, head) for head in remaining[layer][:AT_ONCE]]
            spent, compiling = seconds_of(device, partial(circuit.outcomes, heads), forget=circuit.forget)
            warming += compiling
            costs.append(max(0.0, spent - full_pass) / len(heads))
        layer_costs[name] = [times * float(np.interp(layer, layers, costs)) for layer in range(last + 1)]
    return Timed(times * full_pass, layer_costs, warming if circuit.compiles else 0.0)


def _summed(job: ScoreJob, seconds: Timed, *, heads: int) -> tuple[int, float]:
    """Return how many candidates are valued, and the seconds of the whole search."""
    every = sum(job.scored[name].num_heads * cost for name, costs in seconds.layers.items() for cost in costs)
    settings = job.set_for(CircuitSettings)
    lazy = settings.search == "lazy"
    valued, spent = 0.0, seconds.full_pass
    for step in range(job.budget):
        remaining_share = 1 - step / heads
        share = LAZY_SHARE if lazy and step % (settings.recheck or RECHECK) else 1.0
        valued += share * remaining_share * heads
        spent += share * remaining_share * every + (0 if lazy and share < 1 else seconds.full_pass)
    if lazy and (most := trials_of(settings, job.budget)):
        # a look at all heads, swaps, about half of them in vain; and about half of the removals are valued in their new order
        trials = min(most, PATIENCE * job.budget) + job.budget / 2
        valued += heads + trials
        spent += every + seconds.full_pass + trials * seconds.full_pass / 2
    return round(valued), spent


def _bytes(samples: Samples) -> int:
    inputs = samples.inputs
    return sum(int(x.nbytes) for x in (inputs.values() if isinstance(inputs, Mapping) else (inputs,)))
