from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hydractl.errors import ManifestError
from hydractl.manifest.heads import Removal
from hydractl.progress import SILENT
from hydractl.scoring.circuit import memory as circuit_memory
from hydractl.scoring.circuit.lazy import Lazy
from hydractl.scoring.circuit.method import score_circuit
from hydractl.scoring.circuit.settings import CircuitSettings
from support import naive
from support.builders import base
from support.circuits import Interrupted, data_for, job_for, library_for, named, removed
from support.jobs import together
from support.variants import variant

FAMILIES = ["timm-vit-class-token", "transformers-bert-plain", "transformers-clip-plain"]


def run(sample, data, *, budget=7, log=None, search="lazy", **changes):
    extra = {} if log is None else {"log": log}
    settings = CircuitSettings(search=search, **changes)
    return score_circuit(job_for(sample, data, budget=budget, settings=settings, **extra), SILENT)


@pytest.mark.parametrize("objective", ["avg", "nll", "ece", "fpr95"])
@pytest.mark.parametrize("name", FAMILIES)
def test_checking_every_time_is_exact(name, objective):
    sample = base(named(name))
    data = data_for(sample, count=24, others=20)
    expected = run(sample, data, objective=objective, budget=4, search="exact")

    found = run(sample, data, objective=objective, budget=4, recheck=1)

    assert removed(found) == removed(expected)
    assert [r.objective for r in found.removals] == pytest.approx(
        [r.objective for r in expected.removals], abs=1e-12
    )
    assert found.results["evaluations"] == found.results["exact_evaluations"]
    assert found.results["work"] == 1


@pytest.mark.parametrize("kept", [0, 20_000, 1 << 30])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_recorded_is_true_of_the_circuit(monkeypatch, name, kept):
    monkeypatch.setattr(circuit_memory, "KEPT_BYTES", kept)
    sample = base(named(name))
    data = data_for(sample, count=24, others=20)

    ranking = run(sample, data, budget=6)

    library = library_for(sample)
    offset = dict(zip(ranking.scores, [0, 3], strict=False))
    for r in ranking.removals:
        naive.remove(library, offset[r.tower] + r.layer, r.head)
        assert r.objective == pytest.approx(naive.objective(library, "avg", data), abs=1e-12)


@pytest.mark.parametrize("after", [1, 3, 4, 7])
@pytest.mark.parametrize("objective", ["avg", "acc-0.1*nll"])
def test_going_on_after_an_interruption_changes_nothing(objective, after):
    sample = base(variant("class-token"))
    data = data_for(sample)
    settings = {"objective": objective, "recheck": 3}
    whole = run(sample, data, **settings)
    first = Interrupted(after=after)
    with pytest.raises(KeyboardInterrupt):
        run(sample, data, log=first, **settings)

    second = first.resumed()
    resumed = run(sample, data, log=second, **settings)

    assert resumed == whole
    assert len(second.seen) == 7 - after


def test_what_the_journal_says_counts():
    sample = base(variant("class-token"))
    data = data_for(sample, count=24, others=20)
    others = [Removal(tower="vision", layer=layer, head=3, objective=0.5) for layer in (2, 0)]
    log = Interrupted(others, 0.25, {"spent": (1.0, 2.0, 3.0, 4.0)})

    ranking = run(sample, data, budget=5, log=log)

    assert ranking.removals[:2] == tuple(others)
    assert ranking.baseline == 0.25
    library = library_for(sample)
    for i, r in enumerate(ranking.removals):
        naive.remove(library, r.layer, r.head)
        if i > 1:
            assert r.objective == pytest.approx(naive.objective(library, "avg", data), abs=1e-12)


@pytest.mark.parametrize("memory", [{}, {"spent": (1.0,)}])
def test_a_damaged_memory_is_refused(memory):
    sample = base(variant("class-token"))
    data = data_for(sample, count=8, others=8)
    first = Interrupted(after=2)
    with pytest.raises(KeyboardInterrupt):
        run(sample, data, log=first)

    with pytest.raises(ManifestError, match="numbers of `spent`, not 4"):
        run(sample, data, log=Interrupted(first.seen, first.baseline, memory))


def test_the_same_twice():
    sample = base(variant("class-token"))
    data = data_for(sample)

    assert run(sample, data) == run(sample, data)


@pytest.mark.parametrize("kept", [100_000, 1 << 30])
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_find_the_same_bits(monkeypatch, world, kept):
    monkeypatch.setattr(circuit_memory, "KEPT_BYTES", kept)
    sample = base(variant("class-token"))
    data = data_for(sample)
    settings = CircuitSettings(search="lazy", recheck=3)
    alone = score_circuit(job_for(sample, data, budget=5, settings=settings), SILENT)

    def work(team):
        job = job_for(sample, data, budget=5, settings=settings, team=team)
        share = slice(team.rank, None, world)
        return score_circuit(replace(job, id_data=job.id_data[share], ood_data=job.ood_data[share]), SILENT)

    assert together(world, work) == [alone] * world


def test_lazy_values_fewer_candidates():
    sample = base(variant("class-token"))

    found = run(sample, data_for(sample), budget=6)

    # All 12 first, then three of the most promising and two of the longest ago at least.
    assert (
        12 + 5 * 5
        <= found.results["evaluations"]
        < found.results["exact_evaluations"]
        == 12 + 11 + 10 + 9 + 8 + 7
    )
    assert 0 < found.results["work"] < 1


def test_two_of_those_valued_waited_the_longest(monkeypatch):
    best, steps = Lazy.best, []

    def watched(self, step):
        since = dict(self.since)
        answer = best(self, step)
        heads = self.circuit.candidates()
        left = [since[head] for head in heads if self.since[head] < step]
        if left:
            steps.append(sum(since[head] <= min(left) for head in heads if self.since[head] == step))
        return answer

    monkeypatch.setattr(Lazy, "best", watched)
    run(base(variant("class-token")), data_for(base(variant("class-token"))), budget=6)

    assert len(steps) > 2
    assert min(steps) >= 2


def test_every_head_can_go():
    sample = base(variant("class-token"))

    found = run(sample, data_for(sample, count=12, others=12), budget=12)

    assert len(set(removed(found))) == 12


def test_of_equal_candidates_the_first_goes():
    sample = base(variant("class-token"))
    images, labels, others = data_for(sample, count=8, others=8)

    found = run(
        sample,
        (torch.zeros_like(images), labels, torch.zeros_like(others)),
        budget=1,
        objective="ood",
    )

    assert removed(found) == [("vision", 0, 0)]
