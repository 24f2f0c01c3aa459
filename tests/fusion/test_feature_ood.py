"""Fitting OOD scores does not hold the logits of the whole training data in memory."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from hydractl.data.batches import Batch
from hydractl.errors import OutputError
from hydractl.metrics.feature_scores import FITS, Classifier
from hydractl.output import scratch
from hydractl.prediction.feature_ood import fit_scores
from hydractl.processes.distributed import ProcessGroup
from hydractl.scoring.circuit.tower import Peak

MEMBERS, SAMPLES, CLASSES, WIDTH, BATCH = 2, 1024, 2000, 8, 32
LOGITS = 4 * MEMBERS * SAMPLES * CLASSES


@dataclass
class Model:
    temperature: float = 1.0


class Watching:
    """Stub of a predictor with many classes."""

    model = Model()
    width, device, dtype = WIDTH, torch.device("cpu"), torch.float32

    def classifiers(self):
        draw = torch.Generator().manual_seed(0)
        return [
            Classifier(torch.randn(CLASSES, WIDTH, generator=draw), torch.zeros(CLASSES))
            for _ in range(MEMBERS)
        ]

    def outputs(self, indices):
        features = torch.randn(MEMBERS, len(indices), WIDTH, generator=torch.Generator().manual_seed(1))
        features = features + indices[:, None] % 7
        logits = torch.stack([f @ c.weight.T for f, c in zip(features, self.classifiers(), strict=True)])
        return logits, features


def test_fitting_holds_no_logits_of_the_whole_data():
    labels = torch.arange(SAMPLES) % 5
    batches = [Batch(indices, indices) for indices in torch.arange(SAMPLES).split(BATCH)]
    with Peak() as peak:
        fit_scores(Watching(), [*FITS], (batches, labels), name="m", team=ProcessGroup())
    assert peak.highest < LOGITS / 4


def fitted(scores):
    labels = torch.arange(SAMPLES) % 5
    batches = [Batch(indices, indices) for indices in torch.arange(SAMPLES).split(BATCH)]
    scores = fit_scores(Watching(), scores, (batches, labels), name="m", team=ProcessGroup())
    return scores.tensors()


def test_features_that_lie_in_a_file_give_the_same_scores(monkeypatch):
    in_memory = fitted([*FITS])
    monkeypatch.setattr(scratch, "HELD_BYTES", 0)
    in_file = fitted([*FITS])

    assert in_memory.keys() == in_file.keys()
    assert all(torch.equal(tensor, in_file[name]) for name, tensor in in_memory.items())


def test_a_file_without_room_is_refused_before_the_data_are_read(monkeypatch):
    monkeypatch.setattr(scratch, "HELD_BYTES", 0)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))

    with pytest.raises(OutputError, match="the features of 1024 samples need") as caught:
        fitted(["vim"])
    assert "TMPDIR" in caught.value.hint
    assert fitted(["relative-mahalanobis"])
