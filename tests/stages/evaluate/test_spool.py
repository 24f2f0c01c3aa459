"""Predictions that are kept on the disk: what is read of them is what memory would have held, and nothing of them stays."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from hydractl.errors import OutputError
from hydractl.metrics import per_sample
from hydractl.metrics.compute import measure
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import Joined, Responses, in_memory
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.temperature import Scaled, fit_temperature, scale
from hydractl.output import scratch
from hydractl.stages.evaluate.predictions_file import write_predictions
from hydractl.stages.shared import prediction_store
from hydractl.stages.shared.prediction_store import PredictionStore

M, N, C = 3, 101, 6


@pytest.fixture(scope="module")
def said():
    logits = 3 * torch.randn(M, N, C, generator=torch.Generator().manual_seed(0))
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1))


@pytest.fixture(scope="module")
def labels():
    return torch.randint(C, (N,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["in the order of the data", "sorted by length"])
def kept(said, request, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_store, "HELD_BYTES", 0)
    order = torch.arange(N) if request.param.startswith("in") else torch.randperm(N)
    mine = PredictionStore(N, tmp_path)
    for indices in order.split(8):
        mine.store(indices, Responses(said.log_probs[:, indices], said.logsumexp[:, indices]))
    return mine.stored()


def same(one, other):
    return all(
        torch.equal(x, y) for x, y in zip(in_memory(one).tensors(), in_memory(other).tensors(), strict=True)
    )


def test_it_reads_as_it_would_in_memory(kept, said, tmp_path):
    assert kept.shape == said.shape == (M, N, C)
    assert same(kept, said)
    assert same(Joined((kept, said)), Responses(*(torch.cat([x, x]) for x in said.tensors())))
    for size in (1, 10, N):
        for part, own in zip(kept.split(size), said.split(size), strict=True):
            assert same(part, own)
    for many in (kept, said, Scaled(kept, 1.7), Joined((said, kept))):
        assert same(Joined(tuple(many.members())), many)
    assert not list(tmp_path.iterdir())  # the file has no name


def test_every_number_is_what_it_would_be_in_memory(kept, said, labels, monkeypatch):
    monkeypatch.setattr(per_sample, "NUMBERS_AT_ONCE", M * C * 10)

    def numbers(found):
        measured = measure(
            found, labels, {"other": Responses(said.log_probs[:, :40], said.logsumexp[:, :40])},
            metrics=tuple(METRICS), scores=tuple(SCORES), resampling=Resampling(resamples=3),
        )  # fmt: skip
        return measured.values, measured.ood

    fitted = fit_temperature(said, labels)

    assert numbers(kept) == numbers(said)
    assert fit_temperature(kept, labels) == fitted
    assert numbers(Scaled(kept, fitted.temperature)) == numbers(scale(said, fitted.temperature))


@pytest.mark.parametrize("held", [1 << 20, 0, 4 * M * C * 40])
@pytest.mark.parametrize("block", [1, 7, 4096])
def test_where_nobody_knew_how_many_would_come_it_is_the_same(
    said, labels, tmp_path, monkeypatch, held, block
):
    monkeypatch.setattr(prediction_store, "HELD_BYTES", held)
    monkeypatch.setattr(prediction_store, "BLOCK", block)
    mine = PredictionStore(None, tmp_path)
    for part in torch.arange(N).split(16):
        for indices in part[torch.randperm(len(part))].split(5):
            mine.store(indices, Responses(said.log_probs[:, indices], said.logsumexp[:, indices]))
    kept = mine.stored()

    assert kept.shape == said.shape
    assert isinstance(kept, Responses) == (held == 1 << 20)
    assert same(kept, said)
    assert fit_temperature(kept, labels) == fit_temperature(said, labels)
    for size in (1, 10, N):
        for part, own in zip(kept.split(size), said.split(size), strict=True):
            assert same(part, own)
    assert not list(tmp_path.iterdir())
    mine.store(torch.tensor([N + 1]), Responses(said.log_probs[:, :1], said.logsumexp[:, :1]))
    with pytest.raises(ValueError, match="102 of 103 items were read"):
        mine.stored()


def test_what_is_saved_of_it_is_too(kept, said, tmp_path):
    def written(found):
        labels = {"id": torch.zeros(N, dtype=torch.int64)}
        with (tmp_path / "p.st").open("wb") as file:
            write_predictions(file, {"row": {"id": found}}, labels, with_logits=True)
        return (tmp_path / "p.st").read_bytes()

    assert written(Scaled(kept, 1.3)) == written(scale(said, 1.3))


def test_a_disk_without_room_is_refused_before_it_is_full(said, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_store, "HELD_BYTES", 0)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1000))

    with pytest.raises(OutputError, match=r"need 0\.0 GB of disk space until they are measured") as error:
        PredictionStore(N, tmp_path).store(torch.arange(N), said)

    assert "TMPDIR" in error.value.hint


def test_samples_that_have_not_come_are_noticed(said):
    mine = PredictionStore(N + 1)
    mine.store(torch.arange(N), said)

    with pytest.raises(ValueError, match="101 of 102 items were read"):
        mine.stored()
