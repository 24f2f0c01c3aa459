"""Jobs for circuit extraction on tiny models, in float64."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

from hydractl.model_inputs import cut_batch, map_inputs
from hydractl.scoring.circuit import search
from hydractl.scoring.circuit.search import Swaps
from hydractl.scoring.job import Log, Samples, ScoreJob
from support.jobs import DOUBLE, labels_for, model_for


def model_inputs(sample, count, seed):
    """Return inputs; only images for zero-shot models."""
    inputs = sample.inputs(batch=count, seed=seed, dtype=DOUBLE)
    return inputs["pixel_values"] if sample.header.prompting else inputs


def data_for(sample, *, count=40, others=30):
    """Return ID inputs, labels and OOD inputs in float64."""
    inputs = model_inputs(sample, count, 1)
    return (
        inputs,
        labels_for(sample, inputs),
        map_inputs(lambda x: 2 * x if x.is_floating_point() else x, model_inputs(sample, others, 3)),
    )


def job_for(sample, data, **changes):
    images, labels, others = data
    return ScoreJob(
        model=model_for(sample),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=[Samples(x, y) for x, y in zip(cut_batch(images, 16), labels.split(16), strict=True)],
        ood_data=[Samples(x, None) for x in cut_batch(others, 16)],
        **changes,
    )


@contextmanager
def lazy_constants(*, recheck=search.FULL_EVALUATION_INTERVAL, doubt=search.MIN_EXPECTED_GAIN, swaps=None):
    """Set the constants of lazy search, and the largest number of swaps, for a block."""
    run = Swaps.run
    with (
        patch.object(search, "FULL_EVALUATION_INTERVAL", recheck),
        patch.object(search, "MIN_EXPECTED_GAIN", doubt),
        patch.object(Swaps, "run", lambda self, trials: run(self, trials if swaps is None else swaps)),
    ):
        yield


def removed(ranking):
    """Return the removed heads in order, as (tower, layer, head)."""
    return [(r.tower, r.layer, r.head) for r in ranking.removals]


class InterruptedLog(Log):
    """A log that raises KeyboardInterrupt after some removals. `resumed` returns the log of the next run."""

    def __init__(self, done=(), baseline=None, memory=None, *, after=10**9):
        self.recorded, self.baseline, self.memory, self.after = tuple(done), baseline, memory or {}, after
        self.seen = []

    def begin(self, baseline):
        self.baseline = baseline

    def record(self, removal, memory=None):
        self.seen.append(removal)
        self.latest = memory or {}
        if len(self.seen) == self.after:
            raise KeyboardInterrupt

    def resumed(self):
        return InterruptedLog((*self.recorded, *self.seen), self.baseline, self.latest)
