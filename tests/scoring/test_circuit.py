from __future__ import annotations

import pytest
import torch

from hydractl.families.inputs import cut_batch, map_inputs
from hydractl.manifest import Removal
from hydractl.progress import SILENT
from hydractl.scoring import circuit
from hydractl.scoring.circuit import score_circuit
from hydractl.scoring.job import Forgetful, Samples, ScoreJob
from hydractl.scoring.settings import CircuitSettings
from support import naive
from support.builders import base
from support.variants import VARIANTS, variant

DOUBLE = torch.float64


CLASSES = 7


def asked(sample, count, seed):
    """Return inputs without what names a zero-shot model's classes."""
    inputs = sample.inputs(batch=count, seed=seed, dtype=DOUBLE)
    return inputs["pixel_values"] if sample.header.prompting else inputs


def prompts(sample):
    inputs = sample.inputs(batch=CLASSES, seed=5)
    return {name: x for name, x in inputs.items() if name != "pixel_values"}


def library_for(sample):
    """Return the library's own model; a zero-shot one compares with the same prompts as ours."""
    library = sample.library(DOUBLE)
    if sample.header.prompting:
        library.texts = prompts(sample)
    return library


def model_for(sample):
    model = sample.model(DOUBLE)
    if sample.header.prompting:
        model.answer.ask(prompts(sample), templates=1)
    return model


def data_for(sample, *, count=40, others=30):
    """Return images, labels and OOD images in float64."""
    return (
        asked(sample, count, 1),
        torch.randint(0, CLASSES, (count,), generator=torch.Generator().manual_seed(2)),
        map_inputs(lambda x: 2 * x if x.is_floating_point() else x, asked(sample, others, 3)),
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


@pytest.mark.parametrize("objective", ["acc", "ood", "avg"])
def test_same_removals_as_algorithm_1(objective):
    sample = base(variant("class-token"))
    data = data_for(sample)

    ranking = score_circuit(
        job_for(sample, data, budget=7, settings=CircuitSettings(objective=objective)), SILENT
    )

    expected = naive.greedy(library_for(sample), objective, data, 7)
    assert [(r.layer, r.head) for r in ranking.removals] == [(layer, head) for layer, head, _ in expected]
    assert [r.objective for r in ranking.removals] == pytest.approx(
        [value for *_, value in expected], abs=1e-12
    )
    assert ranking.baseline == pytest.approx(naive.objective(library_for(sample), objective, data), abs=1e-12)


@pytest.mark.parametrize("one", VARIANTS, ids=str)
def test_every_candidate_is_valued_as_by_a_full_pass(one):
    sample = base(one)
    data = data_for(sample, count=12, others=9)
    job = job_for(sample, data)
    library = library_for(sample)

    with torch.inference_mode():
        values = circuit.Circuit(job).candidate_values()

    expected = [
        naive.without(library, layer, head, "avg", data) for layer, head in naive.candidates(library, [])
    ]
    assert list(values.values()) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("elements", [1, 1 << 30])
def test_how_many_run_side_by_side_changes_nothing(monkeypatch, elements):
    sample = base(variant("distilled"))
    expected = score_circuit(job_for(sample, data_for(sample), budget=4), SILENT)
    monkeypatch.setattr(circuit, "STREAM_ELEMENTS", elements)

    found = score_circuit(job_for(sample, data_for(sample), budget=4), SILENT)

    assert [r[:3] for r in map(astuple, found.removals)] == [r[:3] for r in map(astuple, expected.removals)]


def astuple(removal):
    return removal.tower, removal.layer, removal.head, removal.objective


def test_every_head_can_go():
    sample = base(variant("class-token"))
    total = sum(t.layers * t.num_heads for t in sample.header.architecture.towers.values())

    ranking = score_circuit(job_for(sample, data_for(sample, count=8, others=8), budget=total), SILENT)

    assert len({astuple(r)[:3] for r in ranking.removals}) == total
    assert sorted(s for row in ranking.scores["vision"] for s in row) == [float(i) for i in range(total)]


def test_scores_are_the_order_of_removal():
    sample = base(variant("class-token"))

    ranking = score_circuit(job_for(sample, data_for(sample), budget=5), SILENT)

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

    ranking = score_circuit(job, SILENT)

    assert [(r.layer, r.head) for r in ranking.removals] == [(0, 0), (0, 1), (0, 2)]


class Interrupted(Forgetful):
    """A log whose owner is interrupted after some removals."""

    def __init__(self, done=(), baseline=None, *, after=10**9):
        self.done, self.baseline, self.after, self.seen = tuple(done), baseline, after, []

    def begin(self, baseline):
        self.baseline = baseline

    def record(self, removal):
        self.seen.append(removal)
        if len(self.seen) == self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 3])
def test_going_on_after_an_interruption_changes_nothing(after):
    sample = base(variant("class-token"))
    whole = score_circuit(job_for(sample, data_for(sample), budget=6), SILENT)
    first = Interrupted(after=after)
    with pytest.raises(KeyboardInterrupt):
        score_circuit(job_for(sample, data_for(sample), budget=6, log=first), SILENT)

    second = Interrupted(first.seen, first.baseline)
    resumed = score_circuit(job_for(sample, data_for(sample), budget=6, log=second), SILENT)

    assert resumed == whole
    assert len(second.seen) == 6 - after
    assert all(isinstance(r, Removal) for r in resumed.removals)
