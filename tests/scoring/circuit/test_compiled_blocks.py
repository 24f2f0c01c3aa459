"""A search with compiled blocks finds the same heads, and compiles each kind of block once."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from hydractl import runtime
from hydractl.errors import UsageError
from hydractl.model_inputs import cut_batch
from hydractl.scoring.circuit.ablation import Circuit
from hydractl.scoring.circuit.search import score_circuit
from hydractl.scoring.job import Samples
from hydractl.scoring.settings import CircuitSettings
from support.builders import base
from support.circuits import data_for, job_for, removed
from support.variants import READERS, VARIANTS, variant

SMOOTH = CircuitSettings(objective="0.5*acc-0.1*nll")
"""Objective that changes with each logit."""


def values(sample, data, **changes):
    with torch.inference_mode():
        return Circuit(job_for(sample, data, settings=SMOOTH, **changes)).candidate_values()


@pytest.fixture
def count(monkeypatch):
    """Backend with a counter of graphs, without compilation."""
    counter = CompileCounter()
    monkeypatch.setattr(runtime, "BACKEND", counter)
    return counter


@pytest.mark.newer
@pytest.mark.spread(
    families=(*READERS, "transformers-deberta"),
    every=16,
)
@pytest.mark.parametrize("one", VARIANTS, ids=str)
def test_candidates_have_the_same_values_by_two_graphs_a_tower(count, one):
    """Three blocks, the last one for a single token, and batches of 16, 16 and 1."""
    sample = base(one)
    data = data_for(sample, count=33, others=17)
    expected = values(sample, data)

    found = values(sample, data, compiles="it")

    assert found == pytest.approx(expected, abs=1e-12)
    assert 1 <= count.frame_count <= 2 * len(sample.header.architecture.towers)


@pytest.mark.newer
def test_neither_layers_nor_batches_nor_removals_are_compiled_for(count):
    sample = base(variant("timm-vit-class-token"))
    images, labels, others = data_for(sample, count=33, others=17)
    job = job_for(sample, (images, labels, others), compiles="it", budget=6)
    for size in (7, 3):
        job.id_data.extend(
            Samples(x, y) for x, y in zip(cut_batch(images, size), labels.split(size), strict=True)
        )

    score_circuit(job)

    assert count.frame_count == 1


@pytest.mark.more
@pytest.mark.parametrize("name", [
    pytest.param("timm-vit-class-token", marks=pytest.mark.newer),
    *(
        pytest.param(name, marks=pytest.mark.more)
        for name in (
            "timm-eva-dinov3", "timm-relpos-networks-norms-last", "timm-vit-rms-norm-swiglu", "transformers-bert-plain",
            "transformers-beit-class-token", "transformers-clip-plain", "transformers-deberta-convolution",
            "transformers-modernbert-plain", "openclip-plain",
        )
    ),
])  # fmt: skip
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float64, 1e-12, id="fp64"),
        pytest.param(torch.float32, 1e-6, id="fp32", marks=pytest.mark.more),
    ],
)
def test_what_is_compiled_rounds_at_most(name, dtype, tolerance):
    sample = base(variant(name))
    data = data_for(sample, count=24, others=20)
    jobs = [job_for(sample, data, budget=4, settings=SMOOTH, compiles=name) for name in (None, "it")]
    for job in jobs:
        job.model.to(dtype)

    expected, found = (score_circuit(job) for job in jobs)

    assert removed(found) == removed(expected)
    assert [r.objective for r in found.removals] == pytest.approx(
        [r.objective for r in expected.removals], abs=tolerance
    )


@pytest.mark.newer
@pytest.mark.parametrize("search", ["exact", "lazy"])
def test_memory_is_measured_as_uncompiled(count, search):
    sample = base(variant("timm-vit-class-token"))
    settings, data = CircuitSettings(search=search), data_for(sample)
    fits = []
    for compiles in (None, "it"):
        job = job_for(sample, data, settings=settings, max_memory=4 << 20, compiles=compiles)
        circuit = Circuit(job)
        with torch.inference_mode():
            circuit.candidate_values()
        fits.append([*circuit.room._fits.values()])

    assert fits[0] == fits[1]
    assert count.frame_count == 1


@pytest.mark.newer
def test_more_graphs_than_torch_keeps_are_refused(count):
    # the first block has no drop path and therefore a different graph
    sample = base(variant("transformers-beit-plain"))

    with (
        torch._dynamo.config.patch(recompile_limit=1),
        pytest.raises(UsageError, match="`--compile`: it cannot"),
    ):
        values(sample, data_for(sample), compiles="it")
