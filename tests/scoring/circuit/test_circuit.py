from __future__ import annotations

import pytest
import torch

from hydractl.manifest.head_mask import Removal
from hydractl.scoring.circuit import tower as circuit_memory
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import score_circuit
from hydractl.scoring.settings import CircuitSettings
from support import naive
from support.builders import base
from support.circuits import InterruptedLog, data_for, job_for, removed
from support.jobs import library_for
from support.variants import READERS, VARIANTS, variant

OBJECTIVES = [
    "acc", "ood", "avg", "nll", "ece", "fpr95", "acc-0.1*nll", "ood/energy", "avg/entropy", "fpr95/max-logit",
]  # fmt: skip
FEW = {
    "transformers-bert-plain": ("acc-0.1*nll", "avg/entropy"),
    "transformers-clip-plain": ("fpr95/max-logit",),
}
"""Objectives that together use hits, likelihoods and a non-default OOD score."""


def settings(objective, **changes):
    """Return settings for an objective, optionally followed by `/` and an OOD score."""
    name, _, score = objective.partition("/")
    return CircuitSettings(objective=name, ood_score=score or "msp", search="exact", **changes)


@pytest.mark.spread(cases=4)
@pytest.mark.parametrize(("name", "objective"), [
    *(("timm-vit-class-token", objective) for objective in OBJECTIVES),
    *(
        pytest.param(name, objective, marks=() if objective in FEW[name] else pytest.mark.more)
        for name in FEW
        for objective in OBJECTIVES
    ),
])  # fmt: skip
def test_same_removals_as_algorithm_1(name, objective):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)

    ranking = score_circuit(job_for(sample, data, budget=4, settings=settings(objective)))

    expected = naive.greedy(library_for(sample), objective, data, 4)
    layers = [t.layers for t in sample.header.architecture.towers.values()]
    found = [
        (r.layer + (layers[0] if r.tower != next(iter(ranking.scores)) else 0), r.head)
        for r in ranking.removals
    ]
    assert found == [(layer, head) for layer, head, _ in expected]
    assert [r.objective for r in ranking.removals] == pytest.approx(
        [value for *_, value in expected], abs=1e-12
    )
    assert ranking.baseline == pytest.approx(naive.objective(library_for(sample), objective, data), abs=1e-12)
    assert ranking.results == {}


@pytest.mark.spread(
    families=(*READERS, "transformers-deberta"),
    every=16,
)
@pytest.mark.parametrize("one", VARIANTS, ids=str)
def test_every_candidate_is_valued_as_by_a_full_pass(one):
    sample = base(one)
    data = data_for(sample, count=12, others=9)
    job = job_for(sample, data)
    library = library_for(sample)

    with torch.inference_mode():
        values = Circuit(job).candidate_values()

    expected = [
        naive.without(library, layer, head, "avg", data) for layer, head in naive.candidates(library, [])
    ]
    assert list(values.values()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("elements", [1, 1 << 30])
def test_how_many_run_side_by_side_changes_nothing(monkeypatch, elements):
    sample = base(variant("distilled"))
    expected = score_circuit(job_for(sample, data_for(sample), budget=4))
    monkeypatch.setattr(circuit_memory, "STREAM_ELEMENTS", elements)

    found = score_circuit(job_for(sample, data_for(sample), budget=4))

    assert removed(found) == removed(expected)


def test_every_head_can_go():
    sample = base(variant("class-token"))
    total = sum(t.layers * t.num_heads for t in sample.header.architecture.towers.values())

    ranking = score_circuit(job_for(sample, data_for(sample, count=8, others=8), budget=total))

    assert len(set(removed(ranking))) == total
    assert sorted(s for row in ranking.scores["vision"] for s in row) == [float(i) for i in range(total)]


def test_scores_are_the_order_of_removal():
    sample = base(variant("class-token"))

    ranking = score_circuit(job_for(sample, data_for(sample), budget=5))

    table = ranking.scores["vision"]
    assert [table[r.layer][r.head] for r in ranking.removals] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sum(s == 5.0 for row in table for s in row) == 12 - 5


def test_of_equal_candidates_the_first_goes():
    sample = base(variant("class-token"))
    images, labels, others = data_for(sample, count=8, others=8)
    job = job_for(
        sample,
        (torch.zeros_like(images), labels, torch.zeros_like(others)),
        budget=3,
        settings=CircuitSettings(objective="ood"),
    )

    ranking = score_circuit(job)

    assert [(r.layer, r.head) for r in ranking.removals] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("after", [1, 3])
def test_going_on_after_an_interruption_changes_nothing(after):
    sample = base(variant("class-token"))
    whole = score_circuit(job_for(sample, data_for(sample), budget=6))
    first = InterruptedLog(after=after)
    with pytest.raises(KeyboardInterrupt):
        score_circuit(job_for(sample, data_for(sample), budget=6, log=first))

    second = first.resumed()
    resumed = score_circuit(job_for(sample, data_for(sample), budget=6, log=second))

    assert resumed == whole
    assert len(second.seen) == 6 - after
    assert all(isinstance(r, Removal) for r in resumed.removals)
