from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import DataError
from hydractl.model_inputs import cut_batch
from hydractl.scoring.attention_hooks import Gated, tapped
from hydractl.scoring.gradients import gate_gradients
from hydractl.scoring.job import Samples, ScoreJob
from support.builders import base
from support.variants import VARIANTS, variant

DOUBLE = torch.float64
VIT = variant("class-token")
BERT, CLIP = (
    next(v for v in VARIANTS if v.family == family) for family in ("transformers-bert", "transformers-clip")
)
CLASSES = 7


def job_for(one, *, count=12, batch=4, **changes):
    sample = base(one)
    inputs = sample.inputs(batch=count, seed=1, dtype=DOUBLE)
    model = sample.model(DOUBLE)
    if sample.header.prompting:
        prompts = sample.inputs(batch=CLASSES, seed=5)
        model.answer.ask({n: x for n, x in prompts.items() if n != "pixel_values"}, templates=1)
        inputs = inputs["pixel_values"]
    labels = torch.randint(0, CLASSES, (count,), generator=torch.Generator().manual_seed(2))
    data = [Samples(x, y) for x, y in zip(cut_batch(inputs, batch), labels.split(batch), strict=True)]
    return ScoreJob(
        model=model, family=sample.family, architecture=sample.header.architecture, id_data=data, **changes
    )


def loss_with(job, samples, place, gate):
    """Return the loss of a batch with one head multiplied by `gate`."""

    def tap(tower, layer, attention):
        gates = torch.ones(attention.groups()[0].heads, dtype=DOUBLE)
        if (tower, layer) == place[:2]:
            gates[place[2]] = gate
        return Gated(attention, gates)

    with torch.no_grad(), tapped(job.model, job.scored, tap):
        return F.cross_entropy(job.model(samples.inputs), samples.labels).item()


@pytest.mark.parametrize("one", [VIT, BERT, CLIP], ids=str)
def test_gradients_are_those_of_finite_differences(one):
    job = job_for(one, batch=5)

    found = gate_gradients(job)

    step = 1e-5
    assert list(found) == list(job.scored)
    for tower, table in found.items():
        assert table.shape == (3, 3, 4)
        assert table.dtype == DOUBLE
        for b, samples in enumerate(job.id_data):
            for layer, head in ((0, 0), (1, 3), (2, 2)):
                place = (tower, layer, head)
                rise = loss_with(job, samples, place, 1 + step) - loss_with(job, samples, place, 1 - step)
                assert table[b, layer, head].item() == pytest.approx(rise / (2 * step), rel=1e-5, abs=1e-9)


def test_only_the_scored_towers_have_gates():
    both, one = gate_gradients(job_for(CLIP)), gate_gradients(job_for(CLIP, towers=("vision",)))

    assert list(one) == ["vision"]
    assert torch.equal(one["vision"], both["vision"])


def test_a_head_that_is_gone_has_zero():
    job = job_for(VIT)
    attention = job.model.tower("vision").layers()[1].attn
    attention.members[0] = attention.groups()[0].select([0, 2])

    found = gate_gradients(job)["vision"]

    assert (found[:, 1, [1, 3]] == 0).all()
    assert (found[:, 1, [0, 2]] != 0).all()


def test_a_layer_may_have_lost_every_head():
    job = job_for(VIT)
    attention = job.model.tower("vision").layers()[1].attn
    attention.members[0] = attention.groups()[0].select([])

    found = gate_gradients(job)["vision"]

    assert (found[:, 1] == 0).all()
    assert (found[:, 0] != 0).any()


def test_the_first_batches_are_those_of_all():
    whole, first = gate_gradients(job_for(VIT)), gate_gradients(job_for(VIT), batches=2)

    assert torch.equal(first["vision"], whole["vision"][:2])


class Process:
    """Stub of a process in a group. Records results instead of sending them."""

    def __init__(self, rank, world):
        self.rank, self.world, self.said = rank, world, []

    def in_order(self, own):
        self.said.append(list(own))
        return [torch.zeros(12)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("batches", [1, 2, 4, None])
def test_processes_share_the_first_batches(world, batches):
    job = job_for(VIT, count=12, batch=3)
    expected = gate_gradients(job, batches=batches)["vision"].flatten(1)
    teams = [Process(rank, world) for rank in range(world)]

    for team in teams:
        gate_gradients(replace(job, id_data=job.id_data[team.rank :: world], team=team), batches=batches)

    shares = [team.said[0] for team in teams]
    count = sum(map(len, shares))
    assert torch.equal(torch.stack([shares[i % world][i // world] for i in range(count)]), expected)
    assert all(len(team.said) == 1 for team in teams)


def test_the_model_is_left_as_it_was():
    job = job_for(VIT)
    before = [block.attn for block in job.model.tower("vision").layers()]

    gate_gradients(job)

    assert [block.attn for block in job.model.tower("vision").layers()] == before
    assert all(p.grad is None for p in job.model.parameters())


@pytest.mark.parametrize("case", ["no data", "no labels", "not finite"])
def test_what_cannot_be_used_is_refused(case):
    job = job_for(VIT)
    (inputs, labels), *_ = job.id_data
    data, message = {
        "no data": ([], "no data"),
        "no labels": ([Samples(inputs, None)], "labelled"),
        "not finite": ([Samples(inputs * float("nan"), labels)], "not finite"),
    }[case]

    with pytest.raises(DataError, match=message):
        gate_gradients(replace(job, id_data=data))
