"""Comparison of two ensembles: numbers of scipy, and bounded memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from hydractl.data.batches import Batch
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics import per_sample
from hydractl.metrics.compute import Measurement
from hydractl.metrics.resampling import Resampling
from hydractl.prediction import inference
from hydractl.processes.distributed import ProcessGroup
from hydractl.research.analyses.context import AnalysisContext, ModelOfRow, measure_ensemble, predict_sets
from hydractl.research.analyses.ensembles import compare_answers
from hydractl.scoring.circuit.tower import Peak

MEMBERS, SAMPLES, CLASSES, BATCH = 2, 512, 4000, 16
SAID = 4 * MEMBERS * SAMPLES * CLASSES


class Model:
    """A model with random predictions."""

    device, dtype, temperature = torch.device("cpu"), torch.float32, 1.0

    def __init__(self, seed):
        self.seed = seed

    def outputs(self, inputs):
        draw = torch.Generator().manual_seed(int(inputs[0, 0]) + self.seed)
        return (torch.randn(MEMBERS, len(inputs), CLASSES, generator=draw),)


class Inputs:
    """A data set of sample indices."""

    def __len__(self):
        return SAMPLES

    def tracked(self, *_):
        for places in torch.arange(SAMPLES).split(BATCH):
            yield Batch(places[:, None].float(), places)


def subject():
    measurement = Measurement(
        ("accuracy", "nll", "auroc"), ("msp",), Resampling(resamples=0), {"all": ("others",)}
    )
    labels = torch.arange(SAMPLES) % CLASSES
    data = SimpleNamespace(inputs={ID_NAME: Inputs(), "others": Inputs()}, labels=labels)
    run = SimpleNamespace(measurement=measurement, data=data, team=ProcessGroup())
    return AnalysisContext(
        run=run,
        parts=(),
        base=None,
        separate_members=(),
        scores={},
        predictions={},
        corruptions=(),
        scaled=lambda predictions: predictions,
    )


def answers(seed):
    model = Model(seed)
    return predict_sets(
        subject(),
        ModelOfRow(SimpleNamespace(reference="m", header=SimpleNamespace(preprocess=None)), model, 0),
        model,
    )


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("at_once", [2**20, 2**14])
def test_how_alike_two_ensembles_are(monkeypatch, at_once):
    monkeypatch.setattr(per_sample, "NUMBERS_AT_ONCE", at_once)
    first, second = (answers(seed)[ID_NAME] for seed in (0, 10_000))
    ours, theirs = (
        per_sample.in_memory(said).log_probs.double().exp().mean(0).numpy() for said in (first, second)
    )

    agreement, divergence = compare_answers(first, second)

    assert agreement == np.mean(ours.argmax(1) == theirs.argmax(1))
    assert divergence == pytest.approx(entropy(theirs, ours, axis=1).mean(), abs=1e-6)
    assert compare_answers(first, first) == (1, 0)


def test_memory_holds_a_part_of_what_is_said(monkeypatch):
    monkeypatch.setattr(inference, "HELD_BYTES", 0)
    monkeypatch.setattr(per_sample, "NUMBERS_AT_ONCE", 2**16)
    with Peak() as peak:
        first, second = answers(0), answers(10_000)
        compare_answers(first[ID_NAME], second[ID_NAME])
        measure_ensemble(subject(), first)
    assert peak.highest < SAID / 2
