"""Predictions stored on disk: equal to predictions in memory, and no file remains."""

from __future__ import annotations

import errno
import os
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
from hydractl.prediction import inference
from hydractl.prediction.inference import collected
from hydractl.prediction.run_models import write_predictions

M, N, C = 3, 101, 6


@pytest.fixture(scope="module")
def responses():
    logits = 3 * torch.randn(M, N, C, generator=torch.Generator().manual_seed(0))
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1))


@pytest.fixture(scope="module")
def labels():
    return torch.randint(C, (N,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["in the order of the data", "sorted by length"])
def stored_responses(responses, request, tmp_path, monkeypatch):
    # With a limit of 0 bytes, predictions of any size are stored on disk.
    monkeypatch.setattr(inference, "HELD_BYTES", 0)
    order = torch.arange(N) if request.param.startswith("in") else torch.randperm(N)
    batches = ((i, responses.log_probs[:, i], responses.logsumexp[:, i]) for i in order.split(8))
    return collected(batches, count=N, folder=tmp_path)


def same(one, other):
    return all(
        torch.equal(x, y) for x, y in zip(in_memory(one).tensors(), in_memory(other).tensors(), strict=True)
    )


def test_it_reads_as_it_would_in_memory(stored_responses, responses, tmp_path):
    assert stored_responses.shape == responses.shape == (M, N, C)
    assert same(stored_responses, responses)
    assert same(
        Joined((stored_responses, responses)), Responses(*(torch.cat([x, x]) for x in responses.tensors()))
    )
    for size in (1, 10, N):
        for part, own in zip(stored_responses.split(size), responses.split(size), strict=True):
            assert same(part, own)
    for many in (
        stored_responses,
        responses,
        Scaled(stored_responses, 1.7),
        Joined((responses, stored_responses)),
    ):
        assert same(Joined(tuple(many.members())), many)
    assert not list(tmp_path.iterdir())  # the file is unnamed


def test_every_number_is_what_it_would_be_in_memory(stored_responses, responses, labels, monkeypatch):
    monkeypatch.setattr(per_sample, "NUMBERS_AT_ONCE", M * C * 10)

    def numbers(found):
        measured = measure(
            found, labels, {"other": Responses(responses.log_probs[:, :40], responses.logsumexp[:, :40])},
            metrics=tuple(METRICS), scores=tuple(SCORES), resampling=Resampling(resamples=3),
        )  # fmt: skip
        return measured.values, measured.ood

    fitted = fit_temperature(responses, labels)

    assert numbers(stored_responses) == numbers(responses)
    assert fit_temperature(stored_responses, labels) == fitted
    assert numbers(Scaled(stored_responses, fitted.temperature)) == numbers(
        scale(responses, fitted.temperature)
    )


def test_what_is_saved_of_it_is_too(stored_responses, responses, tmp_path):
    def written(found):
        labels = {"id": torch.zeros(N, dtype=torch.int64)}
        with (tmp_path / "p.st").open("wb") as file:
            write_predictions(file, {"row": {"id": found}}, labels, with_logits=True)
        return (tmp_path / "p.st").read_bytes()

    assert written(Scaled(stored_responses, 1.3)) == written(scale(responses, 1.3))


def test_a_disk_without_room_is_refused_before_it_is_full(responses, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "HELD_BYTES", 0)
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1000))

    with pytest.raises(OutputError, match=r"need 0\.0 GB of disk space until they are measured") as error:
        collected([(torch.arange(N), *responses.tensors())], count=N, folder=tmp_path)

    assert "TMPDIR" in error.value.hint


def test_samples_that_have_not_come_are_noticed(responses):
    with pytest.raises(ValueError, match="101 of 102 items were read"):
        collected([(torch.arange(N), *responses.tensors())], count=N + 1)


@pytest.mark.parametrize("held", [1 << 20, 0])
def test_scores_are_stored_in_the_order_of_the_data(responses, tmp_path, monkeypatch, held):
    monkeypatch.setattr(inference, "HELD_BYTES", held)
    scores = torch.randn(1, N, 2, dtype=torch.float64)
    batches = ((i, *(x[:, i] for x in (*responses.tensors(), scores))) for i in torch.randperm(N).split(8))
    stored_responses = collected(batches, count=N, folder=tmp_path, names=("knn", "vim"))

    assert isinstance(stored_responses, Responses) == (held > 0)
    for found in (
        stored_responses,
        in_memory(stored_responses),
        Scaled(stored_responses, 2.0),
        Joined((stored_responses,)),
    ):
        assert [*found.scores] == ["knn", "vim"]
        assert torch.equal(torch.stack([*found.scores.values()], -1), scores[0])
    assert not any(member.scores for member in stored_responses.members())


def test_scores_of_several_models_are_means_over_their_members(responses):
    one, two = (torch.randn(N, dtype=torch.float64) for _ in range(2))
    parts = (
        responses._replace(scores={"knn": one}),
        Responses(responses.log_probs[:1], None, {"knn": two, "vim": two}),
    )

    assert torch.allclose(Joined(parts).scores["knn"], (M * one + two) / (M + 1))
    assert [*Joined(parts).scores] == ["knn"]
    assert Joined((parts[1], responses)).scores == {}


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_disk_that_is_full_before_the_file_has_its_blocks_is_an_error(responses, tmp_path, monkeypatch):
    """Without allocated blocks, a write to the mapped file would end the process with SIGBUS."""

    def full(_file, _begin, size):
        assert size == responses.log_probs.nbytes
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(inference, "HELD_BYTES", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)

    with pytest.raises(OutputError, match="No space left on device"):
        collected([(torch.arange(N), *responses.tensors())], count=N, folder=tmp_path)
    assert not list(tmp_path.iterdir())
