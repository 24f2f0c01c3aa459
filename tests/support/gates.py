"""Data and models for learned gates: a feed in memory, and a model with unused heads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from hydractl.families.base import position_of
from hydractl.families.head_slicing import TensorRole
from hydractl.model_inputs import map_inputs
from hydractl.research.scores.gates import GateTraining
from hydractl.scoring.job import Samples, ScoreJob
from hydractl.training.feeding import Piece
from support.builders import base
from support.variants import variant

COUNT, BATCH = 48, 16
INPUTS_SEED = 1
IDLE = ((0, 2), (1, 3), (0, 1))
"""Heads without effect in each layer of `planted`."""


class Rows:
    """A feed of inputs in memory, shuffled by seed and epoch."""

    def __init__(self, inputs, labels, *, seed=0):
        self.inputs, self.labels, self.seed = inputs, labels, seed

    @property
    def steps_per_epoch(self):
        return -(-len(self.labels) // BATCH)

    def steps(self, start, stop, share):
        for step in range(start, stop):
            epoch, at = divmod(step, self.steps_per_epoch)
            generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
            rows = torch.randperm(len(self.labels), generator=generator).split(BATCH)[at]
            yield [
                Piece(
                    inputs=map_inputs(lambda x, own=rows[a:b]: x[own], self.inputs),
                    labels=self.labels[rows[a:b]],
                    first=a,
                    total=len(rows),
                    weight=(b - a) / len(rows),
                )
                for a, b in share.bounds(len(rows))
            ]


@cache
def planted():
    """Return a base with unused heads `IDLE` and confident predictions on inputs of `INPUTS_SEED`."""
    sample = base(variant("class-token"))
    state = dict(sample.state)
    for name, tensor in state.items():
        place = position_of(sample.family, name)
        if place.heads is not None and place.heads.role == TensorRole.OUTPUT:
            by_head = 3 * tensor.unflatten(1, (4, -1))
            by_head[:, list(IDLE[place.layer])] = 0
            state[name] = by_head.flatten(1)
    with torch.inference_mode():
        logits = replace(sample, state=state).model()(sample.inputs(batch=COUNT, seed=INPUTS_SEED))
    sure = 3 / logits.std(dim=0).mean()
    state["head.weight"] = state["head.weight"] * sure
    state["head.bias"] = (state["head.bias"] - logits.mean(dim=0).clone()) * sure
    return replace(sample, state=state)


def training_job(sample, *, keeps_weights=False, labels=None, seed=0, **changes):
    """Return a job whose labels are the model's own predictions, so that its heads are worth keeping."""
    inputs = sample.inputs(batch=COUNT, seed=INPUTS_SEED)
    model = sample.model()
    if labels is None:
        with torch.inference_mode():
            labels = model(inputs).argmax(-1).clone()
    data = [
        Samples(map_inputs(lambda x, at=at: x[at : at + BATCH], inputs), labels[at : at + BATCH])
        for at in range(0, COUNT, BATCH)
    ]
    settings = {
        "training": GateTraining(feed=lambda: Rows(inputs, labels, seed=seed), keeps_weights=keeps_weights),
        "id_data": data,
        "seed": seed,
    }
    return ScoreJob(
        model=model,
        family=sample.family,
        architecture=sample.header.architecture,
        **(settings | changes),
    )
