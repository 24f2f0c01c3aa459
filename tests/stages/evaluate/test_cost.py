"""Costs: counted without data, and measured in turn."""

from __future__ import annotations

import pytest
import torch

from hydractl.fusion.hydra import Hydra
from hydractl.metrics.cost import count_macs
from hydractl.metrics.metric import Needs
from hydractl.metrics.table import METRICS, needing
from hydractl.stages.evaluate import cost as evaluate_cost
from hydractl.stages.evaluate.cost import Loaded, count_sizes, measure_latencies
from support.builders import base

SIZES, LATENCIES = (needing(METRICS, needs) for needs in (Needs.WEIGHTS, Needs.TIME))
KEEP = ((0, 1), (2,), (0, 3))


def loaded(*models):
    return Loaded(models=models, preprocess=(base().header.preprocess,) * len(models))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_macs_are_those_of_a_forward_pass(dtype):
    sample = base().pruned(*KEEP)
    model = sample.model(dtype)

    found = count_sizes(loaded(model), SIZES)

    assert found["macs"].value == count_macs(model, sample.inputs(batch=1).to(dtype))
    assert found["parameters"].value == sum(t.numel() for t in sample.state.values())


def test_shared_parameters_count_once_and_sums_are_over_models():
    model = base().model()
    alone = count_sizes(loaded(model), SIZES)

    twice = count_sizes(loaded(model, model), SIZES)
    hydra = count_sizes(loaded(Hydra([model, model])), SIZES)

    for metric in SIZES:
        assert twice[metric].value == 2 * alone[metric].value
        assert hydra[metric].value == alone[metric].value


def test_counting_leaves_the_model_as_it_was():
    sample = base()
    model = sample.model()
    before = model(sample.inputs())

    count_sizes(loaded(model), SIZES)

    assert torch.equal(model(sample.inputs()), before)


def test_the_clock_is_read_around_the_call(monkeypatch):
    ticks = iter([1.0, 3.5])
    monkeypatch.setattr(evaluate_cost, "perf_counter", lambda: next(ticks))
    calls = []

    assert evaluate_cost._seconds_of(lambda: calls.append(1)) == 2.5
    assert calls == [1]


def test_rows_take_turns():
    calls = []

    times = evaluate_cost._in_turn([lambda: calls.append("a"), lambda: calls.append("b")])

    assert "".join(calls).endswith("ab" * evaluate_cost.LEAST)
    assert len(times[0]) == len(times[1]) == evaluate_cost.MOST


def test_only_the_times_asked_for_are_measured(monkeypatch):
    monkeypatch.setattr(evaluate_cost, "MOST", 4)
    rows = [loaded(base().model()), loaded(base(seed=1).model(), base().model())]

    one = measure_latencies(rows, ("latency_ms",), batch_size=2)
    both = measure_latencies(rows, LATENCIES, batch_size=2)

    assert [list(values) for values in one] == [["latency_ms"]] * 2
    assert [list(values) for values in both] == [list(LATENCIES)] * 2
