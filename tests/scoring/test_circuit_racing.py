from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.progress import SILENT
from hydractl.scoring.circuit import score_circuit
from hydractl.scoring.circuit_racing import drawn
from hydractl.scoring.settings import CircuitSettings
from support.builders import base
from support.circuits import data_for, job_for, removed
from support.variants import variant


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.text(max_size=5))
def test_any_beginning_of_an_order_holds_labels_in_proportion(labels, key):
    labels = torch.tensor(labels)
    order = drawn(labels, key)

    assert sorted(order.tolist()) == list(range(len(labels)))
    for upto in range(1, len(labels) + 1):
        for label in labels.unique().tolist():
            expected = upto * (labels == label).double().mean().item()
            assert abs((labels[order[:upto]] == label).sum().item() - expected) <= len(labels.unique())


def test_an_order_follows_from_its_key():
    labels = torch.arange(40) % 3

    assert torch.equal(drawn(labels, "a"), drawn(labels, "a"))
    assert not torch.equal(drawn(labels, "a"), drawn(labels, "b"))


def run(seed=0, *, budget=6, **changes):
    sample = base(variant("class-token"))
    settings = CircuitSettings(search="racing", **changes)
    return score_circuit(
        job_for(sample, data_for(sample, count=120, others=100), budget=budget, settings=settings, seed=seed),
        SILENT,
    )


@pytest.mark.parametrize("first_share", [1 / 1024, 1 / 16, 0.3])
def test_a_race_sees_less_than_everything(first_share):
    found = run(first_share=first_share)

    assert found.results["evaluations"] < found.results["exact_evaluations"]
    assert len(set(removed(found))) == 6


def test_the_seed_draws_the_samples():
    assert run(0) == run(0)
    assert run(0).results != run(1).results
