from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.errors import DataError
from hydractl.scoring import head_profiles
from hydractl.scoring.head_profiles import class_moments, signatures
from hydractl.scoring.job import Samples, ScoreJob
from support.builders import base
from support.variants import variant

DOUBLE = torch.float64
COUNT, SIZE = 23, 4
LABELS = torch.tensor([4, 2, 2, 0, 4, 4, 0, 2, 0, 4, 2, 2, 2, 0, 0, 4, 4, 4, 2, 0, 2, 4, 6])


def job_for(batch, **changes):
    sample = base(variant("class-token"))
    images = sample.inputs(batch=COUNT, seed=1, dtype=DOUBLE)
    return ScoreJob(
        model=sample.model(DOUBLE),
        family=sample.family,
        architecture=sample.header.architecture,
        id_data=[Samples(x, y) for x, y in zip(images.split(batch), LABELS.split(batch), strict=True)],
        **changes,
    )


@pytest.mark.parametrize("batch", [1, 2, 5, COUNT])
def test_streamed_moments_are_those_of_all_samples(batch):
    job = job_for(batch)

    found = class_moments(job, "vision", size=SIZE)

    signed = signatures(job.model, "vision", torch.cat([x for x, _ in job.id_data]), size=SIZE)
    assert found.labels == (0, 2, 4, 6)
    assert found.counts == (6, 8, 8, 1)
    assert found.batches == -(-COUNT // batch)
    assert found.mean.dtype == found.variance.dtype == DOUBLE
    for i, label in enumerate(found.labels[:3]):
        own = signed[label == LABELS]
        assert torch.allclose(found.mean[i], own.mean(0), rtol=0, atol=1e-14)
        assert torch.allclose(found.variance[i], own.var(0), rtol=1e-9, atol=1e-16)
    assert torch.allclose(found.mean[3], signed[-1], rtol=0, atol=1e-14)
    assert (found.variance[3] == 1e-6).all()


class Rounds:
    """Stub of a process. Each round adds the batches of the other processes."""

    def __init__(self, jobs, rank):
        self.jobs, self.rank, self.world, self.turn = jobs, rank, len(jobs), 0

    def in_order(self, own):
        found = []
        for rank, job in enumerate(self.jobs):
            theirs = list(job.id_data)[self.turn : self.turn + 1]
            packed = [head_profiles._packed(job, "vision", s, size=SIZE) for s in theirs]
            if rank == self.rank:
                assert len(own) == len(packed)
            found += packed
        self.turn += 1
        return found


@pytest.mark.parametrize("world", [2, 3, 7])
def test_the_number_of_processes_changes_no_bit(world):
    job = job_for(4)
    expected = class_moments(job, "vision", size=SIZE)
    jobs = [replace(job, id_data=job.id_data[rank::world]) for rank in range(world)]

    for rank, one in enumerate(jobs):
        found = class_moments(replace(one, team=Rounds(jobs, rank)), "vision", size=SIZE)

        assert found[:2] == expected[:2]
        assert found.batches == expected.batches
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.variance, expected.variance)


def test_too_many_classes_are_refused(monkeypatch):
    monkeypatch.setattr(head_profiles, "MOMENTS_BYTES", 16 * 2 * 12 * SIZE**2)

    with pytest.raises(DataError, match="12 heads in at least 3 classes") as caught:
        class_moments(job_for(5), "vision", size=SIZE)

    assert "--signature-size" in caught.value.hint


def test_labels_are_needed():
    job = job_for(5)

    with pytest.raises(DataError, match="needs labelled data"):
        class_moments(replace(job, id_data=[Samples(x, None) for x, _ in job.id_data]), "vision", size=SIZE)
