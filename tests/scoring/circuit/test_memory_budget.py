from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.errors import UsageError
from hydractl.scoring.circuit import tower as circuit_memory
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import score_circuit
from hydractl.scoring.circuit.tower import Peak
from hydractl.scoring.settings import CircuitSettings
from support.builders import base
from support.circuits import data_for, job_for, removed
from support.variants import variant

FAMILIES = ["timm-vit-class-token", "transformers-bert-plain", "transformers-clip-plain"]
USUAL = dict(zip(FAMILIES, ({0, 1, 2, 3}, {0, 3}, {1, 2}), strict=True))
"""Cases tested for each family without `--all-variants`: small or larger memory, exact or lazy search."""


def test_a_peak_counts_what_is_made_and_gone():
    weight = torch.randn(100, 100)

    with torch.inference_mode(), Peak() as peak:
        x = torch.zeros(1000)
        y = x.view(10, 100)  # a view shares the bytes
        weight.split(50)  # views of existing tensors do not count
        z = F.linear(y, weight)
        del x, y
        torch.empty(1 << 20)

    assert peak.live == z.nbytes == 4000
    assert peak.highest == 4000 + 4 * (1 << 20)


def peak_of(job):
    """Return the peak memory of a search in bytes, including remembered samples."""
    with Peak() as peak:
        score_circuit(job)
    return peak.highest


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    ("name", "times", "search"),
    [
        pytest.param(name, times, search, marks=() if place in USUAL[name] else pytest.mark.more)
        for name in FAMILIES
        for place, (times, search) in enumerate(product((1, 3), ("exact", "lazy")))
    ],
)
def test_no_more_is_taken_than_is_given(monkeypatch, name, search, times):
    sample = base(variant(name))
    data = data_for(sample)
    settings = CircuitSettings(search=search)
    monkeypatch.setattr(circuit_memory, "STREAM_ELEMENTS", 1)
    monkeypatch.setattr(circuit_memory, "CACHE_BYTES_WITHOUT_LIMIT", 0)
    limit = times * 4 * peak_of(job_for(sample, data, budget=3, settings=settings))
    monkeypatch.setattr(circuit_memory, "STREAM_ELEMENTS", 1 << 40)

    taken = peak_of(job_for(sample, data, budget=3, settings=settings, max_memory=limit))

    assert taken <= limit


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("search", ["exact", "lazy"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_bound_changes_no_removal(monkeypatch, name, search):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)
    settings = CircuitSettings(search=search)
    expected = score_circuit(job_for(sample, data, budget=4, settings=settings))

    found = score_circuit(job_for(sample, data, budget=4, settings=settings, max_memory=4 << 20))

    assert removed(found) == removed(expected)
    assert [r.objective for r in found.removals] == pytest.approx(
        [r.objective for r in expected.removals], abs=1e-12
    )
    assert found.results == expected.results


def test_too_little_for_one_candidate_is_refused():
    sample = base(variant("timm-vit-class-token"))
    job = job_for(sample, data_for(sample), max_memory=10_000)

    with pytest.raises(
        UsageError, match=r"the removal of one head from one batch needs .* MiB, but 0.0 MiB are allowed"
    ) as caught:
        Circuit(job).candidate_values()

    assert "--batch-size" in caught.value.hint


def test_more_room_runs_more_side_by_side(monkeypatch):
    sample = base(variant("timm-vit-class-token"))
    monkeypatch.setattr(circuit_memory, "STREAM_ELEMENTS", 1 << 40)
    seen = []
    for limit in (600_000, 1_500_000, 100_000_000):
        circuit = Circuit(job_for(sample, data_for(sample), max_memory=limit))
        with torch.inference_mode():
            circuit.candidate_values()
        seen.append(min(circuit.room._fits.values()))

    assert 1 <= seen[0] < seen[1] < seen[2]
