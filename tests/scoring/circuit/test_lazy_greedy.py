from __future__ import annotations

import math
from dataclasses import replace
from statistics import pstdev

import pytest
import torch

from hydractl.errors import ManifestError
from hydractl.manifest.head_mask import HeadId, Removal
from hydractl.scoring.circuit import search
from hydractl.scoring.circuit import tower as circuit_memory
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import (
    DeviationBound,
    Lazy,
    Swap,
    Swaps,
    expected_improvement,
    score_circuit,
)
from hydractl.scoring.settings import CircuitSettings
from support import naive
from support.builders import base
from support.circuits import InterruptedLog, data_for, job_for, lazy_constants, removed
from support.jobs import library_for, together
from support.variants import variant

FAMILIES = ["timm-vit-class-token", "transformers-bert-plain", "transformers-clip-plain"]
OBJECTIVES = ("avg", "nll", "ece", "fpr95")
USUAL = dict(zip(FAMILIES, (OBJECTIVES, ("avg", "ece"), ("nll", "fpr95")), strict=True))
"""Objectives tested for each family without `--all-variants`. Objectives read only logits, so the family has
little influence."""


def run(sample, data, *, budget=7, log=None, search="lazy", **changes):
    extra = {} if log is None else {"log": log}
    constants = {name: changes.pop(name) for name in ("recheck", "doubt", "swaps") if name in changes}
    settings = CircuitSettings(search=search, **changes)
    with lazy_constants(**constants):
        return score_circuit(job_for(sample, data, budget=budget, settings=settings, **extra))


@pytest.mark.spread(cases=5)
@pytest.mark.parametrize("every_head", [{"recheck": 1}, {"doubt": 0}], ids=str)
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        pytest.param(name, objective, marks=() if objective in USUAL[name] else pytest.mark.more)
        for name in FAMILIES
        for objective in OBJECTIVES
    ],
)
def test_valuing_every_head_is_exact(name, objective, every_head):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)
    expected = run(sample, data, objective=objective, budget=4, search="exact")

    found = run(sample, data, objective=objective, budget=4, swaps=0, **every_head)

    assert removed(found) == removed(expected)
    assert [r.objective for r in found.removals] == pytest.approx(
        [r.objective for r in expected.removals], abs=1e-12
    )
    assert found.results["evaluations"] == found.results["exact_evaluations"]
    assert found.results["work"] == 1


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("kept", [0, 20_000, 1 << 30])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_recorded_is_true_of_the_circuit(monkeypatch, name, kept):
    monkeypatch.setattr(circuit_memory, "CACHE_BYTES_WITHOUT_LIMIT", kept)
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)

    ranking = run(sample, data, budget=6)

    library = library_for(sample)
    offset = dict(zip(ranking.scores, [0, 3], strict=False))
    for r in ranking.removals:
        naive.remove(library, offset[r.tower] + r.layer, r.head)
        assert r.objective == pytest.approx(naive.objective(library, "avg", data), abs=1e-12)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("after", [1, 3, 4, 7])
@pytest.mark.parametrize("objective", ["avg", "acc-0.1*nll"])
def test_going_on_after_an_interruption_changes_nothing(objective, after):
    sample = base(variant("class-token"))
    data = data_for(sample)
    settings = {"objective": objective, "recheck": 3}
    whole = run(sample, data, **settings)
    first = InterruptedLog(after=after)
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
    log = InterruptedLog(others, 0.25, {"spent": (1.0, 2.0, 3.0, 4.0)})

    ranking = run(sample, data, budget=5, log=log, swaps=0)

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
    first = InterruptedLog(after=2)
    with pytest.raises(KeyboardInterrupt):
        run(sample, data, log=first)

    with pytest.raises(ManifestError, match="values of `spent`, not 4"):
        run(sample, data, log=InterruptedLog(first.seen, first.baseline, memory))


def test_the_same_twice():
    sample = base(variant("class-token"))
    data = data_for(sample)

    assert run(sample, data) == run(sample, data)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("kept", [100_000, 1 << 30])
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_find_the_same_bits(monkeypatch, world, kept):
    monkeypatch.setattr(circuit_memory, "CACHE_BYTES_WITHOUT_LIMIT", kept)
    sample = base(variant("class-token"))
    data = data_for(sample)
    settings = CircuitSettings(search="lazy")
    monkeypatch.setattr(search, "FULL_EVALUATION_INTERVAL", 3)
    alone = score_circuit(job_for(sample, data, budget=5, settings=settings))

    def work(team):
        job = job_for(sample, data, budget=5, settings=settings, team=team)
        share = slice(team.rank, None, world)
        return score_circuit(replace(job, id_data=job.id_data[share], ood_data=job.ood_data[share]))

    assert together(world, work) == [alone] * world


def test_lazy_values_fewer_candidates():
    sample = base(variant("class-token"))

    found = run(sample, data_for(sample), budget=6, swaps=0)

    assert found.results["exact_evaluations"] == 12 + 11 + 10 + 9 + 8 + 7
    assert 12 + 5 <= found.results["evaluations"] < 50
    assert 0 < found.results["work"] < 1


def poor(sample, data, objective):
    """Return the log of an interrupted search after removal of the first six heads, good or bad."""
    library = library_for(sample)
    removals = []
    for layer, head in list(naive.candidates(library, []))[:6]:
        naive.remove(library, layer, head)
        value = naive.objective(library, objective, data)
        tower = next(iter(sample.header.architecture.towers))
        removals.append(Removal(tower=tower, layer=layer, head=head, objective=value))
    return InterruptedLog(removals, 0.25, {"spent": (1.0, 2.0, 3.0, 4.0)})


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(("objective", "recheck"), [("avg", 24), ("nll", 4)])
@pytest.mark.parametrize("name", FAMILIES)
def test_swaps_raise_the_objective(name, objective, recheck):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)
    log = poor(sample, data, objective)

    ranking = run(sample, data, budget=6, objective=objective, swaps=20, recheck=recheck, log=log)

    assert ranking.results["swapped"] > 0
    assert ranking.removals[-1].objective > log.recorded[-1].objective
    ids = {r.id for r in ranking.removals}
    assert len(ids) == 6 > len(ids & {r.id for r in log.recorded})
    library = library_for(sample)
    offset = dict(zip(ranking.scores, [0, 3], strict=False))
    for r in ranking.removals:
        naive.remove(library, offset[r.tower] + r.layer, r.head)
        assert r.objective == pytest.approx(naive.objective(library, objective, data), abs=1e-12)


@pytest.mark.parametrize("swaps", [1, 3])
def test_no_more_swaps_are_tried_than_wanted(monkeypatch, swaps):
    tried, whole = [], Circuit.changed
    monkeypatch.setattr(
        Circuit, "changed", lambda self, heads: tried.append(len(heads)) or whole(self, heads)
    )
    sample = base(variant("class-token"))
    data = data_for(sample, count=24, others=20)

    run(sample, data, budget=6, swaps=swaps, log=poor(sample, data, "avg"))

    assert tried.count(2) == swaps


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize(
    ("swaps", "worth", "promising", "tries", "looks"),
    [
        (20, [], 20, 3, 1),
        (20, [1], 20, 5, 1),
        (20, [1, 2], 20, 9, 2),
        (2, [], 20, 2, 1),
        (None, range(20), 20, 6, 1),
        (20, [], 0, 0, 1),
        (20, [0, 1], 2, 2, 2),
    ],
    ids=["in-vain", "one", "several", "few", "default", "nothing-promises", "nothing-more-promises"],
)
def test_swaps_end_where_half_as_many_as_go_were_in_vain(monkeypatch, swaps, worth, promising, tries, looks):
    looked, look = [], Circuit.traits_around
    monkeypatch.setattr(
        Circuit, "traits_around", lambda self, heads: looked.append(heads) or look(self, heads)
    )

    def tried(self, swap):
        made = len(self.tried) in worth
        self.tried.add(self.removed ^ {*swap})
        self.made += made
        return made

    def promises(self):
        every = (Swap(a, b) for a in sorted(self.removed) for b in self.circuit.candidates())
        untried = (swap for swap in every if self.removed ^ {*swap} not in self.tried)
        return next(untried) if len(self.tried) < promising else None

    monkeypatch.setattr(Swaps, "_try", tried)
    monkeypatch.setattr(Swaps, "_promising", promises)
    seen = []
    run_swaps = Swaps.run
    monkeypatch.setattr(Swaps, "run", lambda self, trials: run_swaps(self, trials) or seen.append(self))
    monkeypatch.setattr(Lazy, "_in_order", lambda _, removals, __: removals)
    sample = base(variant("class-token"))

    run(sample, data_for(sample), budget=6, swaps=swaps)

    assert (len(seen[0].tried), len(looked)) == (tries, looks)


@pytest.mark.parametrize(("cheap", "tries"), [(0, 0), (9, 3)], ids=["dear", "cheap"])
def test_what_promises_nothing_is_tried_where_the_search_was_cheap(monkeypatch, cheap, tries):
    tried = []
    monkeypatch.setattr(search, "CHEAP_WORK_FRACTION", cheap)
    monkeypatch.setattr(Swaps, "_expected", lambda self, changes: [self.value] * len(changes))
    monkeypatch.setattr(
        Swaps, "_try", lambda self, swap: tried.append(swap) or self.tried.add(self.removed ^ {*swap})
    )
    sample = base(variant("class-token"))

    run(sample, data_for(sample), budget=6)

    assert len({*tried}) == len(tried) == tries


def test_a_search_is_cheap_up_to_a_third_of_the_exact_ones_work(begun):
    search = begun.search
    search.exact_work = 3.0
    for search.work, cheap in ((0.99, True), (1.0, False)):
        assert search.is_cheap is cheap


def test_further_looks_are_at_the_heads_that_promise_most(monkeypatch):
    monkeypatch.setattr(search, "SWAP_CANDIDATES", 4)
    monkeypatch.setattr(search, "REMEASURE_AFTER_SWAPS", 1 / 6)
    looked, look = [], Circuit.traits_around
    monkeypatch.setattr(
        Circuit, "traits_around", lambda self, heads: looked.append(len(heads)) or look(self, heads)
    )
    sample = base(variant("class-token"))
    data = data_for(sample, count=24, others=20)

    run(sample, data, budget=6, swaps=20, objective="nll", log=poor(sample, data, "nll"))

    assert looked[:2] == [12, 8]


@pytest.fixture
def begun():
    """Return a search for swaps after the first check."""
    sample = base(variant("class-token"))
    settings = CircuitSettings(search="lazy", objective="nll")
    search = Lazy(job_for(sample, data_for(sample, count=24), settings=settings))
    with torch.inference_mode():
        search.circuit.change([HeadId("vision", layer, 1) for layer in (0, 1, 2)])
        value = search.circuit.value()
        removals = [Removal(tower="vision", layer=layer, head=1, objective=value) for layer in (0, 1, 2)]
        found = Swaps(search, removals)
        found.now, found.effects = search.measure_effects(search.circuit.heads())
        yield found


def test_what_one_head_does_is_expected_rightly(begun):
    heads = list(begun.effects)
    expected = begun._expected([[head] for head in heads])
    for head, value in zip(heads, expected, strict=True):
        begun.circuit.change([head])
        assert begun.circuit.value() == pytest.approx(value, abs=1e-6)
        begun.circuit.change([head])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_what_was_tried_is_expected_to_do_what_it_did_and_what_was_made_to_be_undone(begun, layer):
    before = begun.value
    for head in (0, 2, 3):
        swap = Swap(HeadId("vision", layer, 1), HeadId("vision", 1, head))
        value, _ = begun.search.value_after(swap)
        made = begun._try(swap)
        assert begun._expected([swap])[0] == pytest.approx(before if made else value, abs=1e-6)
        if made:
            assert begun.value == value > before
            break
        assert begun.value == before >= value


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_look_around_sees_each_change(name):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)
    circuit = Circuit(job_for(sample, data, settings=CircuitSettings(search="lazy")), keeps_streams=True)
    towers = list(circuit.left)
    gone = [HeadId(tower, layer, 2 * layer % 3) for tower in towers for layer in (0, 1, 2)]
    with torch.inference_mode():
        circuit.change(gone)
        before = circuit.value()
        every = circuit.heads()
        now, after = circuit.traits_around(every)
        _, some = circuit.traits_around(every[::5])

        assert list(after) == every == sorted({*circuit.candidates(), *gone}, key=every.index)
        assert list(some) == every[::5]
        assert circuit.value() == before
        same_traits(now, circuit.evaluate()[1])
        for head, traits in after.items():
            circuit.change([head])
            same_traits(traits, circuit.evaluate()[1])
            same_traits(some.get(head, traits), traits)
            circuit.change([head])


def same_traits(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.spread(cases=3)
@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_trial_sees_what_a_change_makes(monkeypatch, name, kept):
    monkeypatch.setattr(circuit_memory, "CACHE_BYTES_WITHOUT_LIMIT", kept)
    sample = base(variant(name))
    settings = CircuitSettings(search="lazy", objective="nll")
    circuit = Circuit(job_for(sample, data_for(sample, count=24), settings=settings), keeps_streams=True)
    with torch.inference_mode():
        for tower in circuit.left:
            last = len(circuit.left[tower]) - 1
            circuit.change([HeadId(tower, 0, 0), HeadId(tower, last, 1)])
            for change in (
                [(0, 0), (last, 0)],
                [(last, 1), (0, 1)],
                [(0, 0), (0, 2)],
                [(last, 1), (last, 2)],
            ):
                heads = [HeadId(tower, *at) for at in change]
                tried = float(circuit.changed(heads)[0])
                circuit.change(heads)
                assert circuit.value() == pytest.approx(tried, abs=1e-12)
                circuit.change(heads)


@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_enters_a_layer_is_computed_once_for_all_trials(monkeypatch, name, kept):
    monkeypatch.setattr(circuit_memory, "CACHE_BYTES_WITHOUT_LIMIT", kept)
    sample = base(variant(name))
    circuit = Circuit(job_for(sample, data_for(sample, count=24, others=20)), keeps_streams=True)
    tower = next(name for name in circuit.left if name not in circuit.model.answer.fixed)
    first = circuit.model.tower(tower).layers()[0]
    whole, seen = type(first).heads, []
    monkeypatch.setattr(
        type(first), "heads", lambda self, *given: seen.append(self is first) or whole(self, *given)
    )
    with torch.inference_mode():
        values = []
        for head in (0, 1):
            values.append(circuit.changed([HeadId(tower, 1, head)])[0])
            below, seen[:] = sum(seen), []
        circuit.change([HeadId(tower, 1, 1)])
        expected = circuit.value()

    assert (below == 0) == (kept > 0)
    assert float(values[1]) == pytest.approx(expected, abs=1e-12)


def test_a_trial_leaves_the_circuit_as_it_was():
    sample = base(variant("class-token"))
    circuit = Circuit(job_for(sample, data_for(sample, count=24, others=20)), keeps_streams=True)
    with torch.inference_mode():
        circuit.remove(HeadId("vision", 1, 2))
        before, heads = circuit.value(), circuit.candidates()
        there = circuit.changed([HeadId("vision", 1, 2), HeadId("vision", 0, 1)])[0]
        circuit.forget()

        assert circuit.value() == before
        assert circuit.candidates() == heads

        circuit.change([HeadId("vision", 1, 2), HeadId("vision", 0, 1)])
        assert circuit.value() == float(there) != before


def test_doubt_grows_with_time_and_with_what_was_missed():
    doubt = DeviationBound(pstdev([0.0, 0.3, 0.6]))
    near, far = HeadId("vision", 0, 0), HeadId("vision", 1, 0)

    assert doubt.deviation(near, 4) == pytest.approx(8**0.5 * doubt.deviation(near, 1))
    first = doubt.deviation(near, 1)
    for _ in range(20):
        doubt.learn(near, 1, 3 * first)
    assert 2 * first < doubt.deviation(near, 1) < 3 * first
    assert first < doubt.deviation(far, 1) < doubt.deviation(near, 1)


def test_what_is_hardly_possible_promises_little():
    assert expected_improvement(0.9, 0.0, 0.8) == pytest.approx(0.1)
    assert expected_improvement(0.7, 0.0, 0.8) == 0
    assert expected_improvement(0.8, 0.1, 0.8) == pytest.approx(0.1 / (2 * math.pi) ** 0.5)
    assert (
        expected_improvement(0.5, 0.1, 0.8)
        < 1e-3
        < expected_improvement(0.7, 0.1, 0.8)
        < expected_improvement(0.7, 0.2, 0.8)
    )


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
