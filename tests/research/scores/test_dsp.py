"""Relaxed top-K selection: against plain Python, in its limits, and on a model with unused heads."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from hydractl.research.scores.dsp import (
    COLDEST,
    SoftSubset,
    StraightThrough,
    hard_top_k,
    score_dsp,
    soft_top_k,
    temperature_at,
)
from hydractl.research.scores.options import DspSettings
from support.gates import IDLE, planted, training_job

DOUBLE = torch.float64


def draws(count, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def literal(r, k, t):
    """Compute equation 11 of Li et al. (2021) in plain Python."""
    r, total, p = [float(x) for x in r], [0.0] * len(r), None
    for j in range(k):
        if j:
            r = [x + math.log(max(1 - q, np.finfo(np.float64).tiny)) for x, q in zip(r, p, strict=True)]
        top = max(x / t for x in r)
        weights = [math.exp(x / t - top) for x in r]
        p = [w / sum(weights) for w in weights]
        total = [a + b for a, b in zip(total, p, strict=True)]
    return total


@pytest.mark.parametrize("t", [1000.0, 10.0, 1.0, 0.1, 0.01, 1e-4, 1e-8])
@pytest.mark.parametrize(("count", "k"), [(1, 1), (7, 1), (12, 5), (12, 12), (48, 31)])
def test_the_relaxed_choice_is_the_formula(count, k, t):
    r = draws(count, seed=count + k)

    found = soft_top_k(r, k, temperature=t)

    assert found.tolist() == pytest.approx(literal(r, k, t), rel=1e-6, abs=1e-9)
    assert found.sum().item() == pytest.approx(k, rel=1e-12)
    assert (found >= 0).all()


@pytest.mark.parametrize(("count", "k"), [(2, 1), (12, 5), (48, 24), (144, 96)])
def test_it_tends_to_the_hard_choice_and_to_the_uniform_one(count, k):
    r = draws(count)

    assert torch.allclose(soft_top_k(r, k, temperature=COLDEST), hard_top_k(r, k), atol=1e-12)
    assert torch.allclose(soft_top_k(r, k, temperature=1e9), torch.full_like(r, k / count), rtol=1e-6)


def test_it_takes_heads_as_they_come():
    r = draws(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))

    assert torch.allclose(soft_top_k(r, 5, temperature=0.3)[order], soft_top_k(r[order], 5, temperature=0.3))


def test_in_between_a_head_may_count_more_than_once():
    p = torch.tensor([0.9, 0.1], dtype=DOUBLE)

    assert soft_top_k(p.log(), 2, temperature=1.0).tolist() == pytest.approx([1.4, 0.6])


@pytest.mark.parametrize("t", [1000.0, 1.0, 0.1, 0.01, 1e-3, 1e-8])
def test_gradients_are_finite_at_any_temperature(t):
    w = draws(144).requires_grad_()

    (soft_top_k(w, 96, temperature=t) * draws(144, seed=1)).sum().backward()

    assert w.grad.isfinite().all()


def test_of_equal_heads_the_first_are_chosen():
    assert hard_top_k(torch.tensor([1.0, 2.0, 1.0, 1.0]), 2).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("made", [StraightThrough, SoftSubset])
def test_a_hard_choice_passes_gradients_as_if_it_were_w(made):
    options = {"temperature": 1.0, "cooldown": 5} if made is SoftSubset else {}
    gates = made(draws(9), keep=4, **options).eval()
    upstream = draws(9, seed=2)

    found = gates()
    (found * upstream).sum().backward()

    assert torch.equal(found, hard_top_k(gates.w, 4))
    assert torch.equal(gates.w.grad, upstream)


def test_the_temperature_falls_by_one_factor_and_stays():
    found = [temperature_at(step, begin=1000.0, cooldown=11) for step in range(14)]

    assert found[0] == 1000.0
    assert found[11:] == [COLDEST] * 3
    assert [b / a for a, b in pairwise(found[:12])] == pytest.approx([0.1] * 11)


def test_noise_is_gumbels_and_hangs_on_seed_and_step_alone():
    gates = SoftSubset(torch.zeros(50_000, dtype=DOUBLE), keep=1, temperature=1.0, cooldown=9)
    gates.begin(3, seed=1)
    first = gates._noise
    gates.begin(4, seed=1)
    second = gates._noise
    gates.begin(3, seed=1)

    assert torch.equal(gates._noise, first)
    assert not torch.equal(second, first)
    assert first.mean().item() == pytest.approx(0.5772, abs=0.03)
    assert first.var().item() == pytest.approx(math.pi**2 / 6, rel=0.05)


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(
    "settings", [{"epochs": 12, "gate_lr": 1.0}, {"epochs": 10, "estimator": "ste"}], ids=["soft", "ste"]
)
def test_heads_that_do_nothing_are_not_chosen(settings):
    found = score_dsp(training_job(planted(), budget=6, settings=DspSettings(**settings)))

    order = sorted(
        (-s, layer, h) for layer, row in enumerate(found.scores["vision"]) for h, s in enumerate(row)
    )
    kept = {(layer, h) for _, layer, h in order[:6]}
    assert not kept & {(layer, h) for layer, heads in enumerate(IDLE) for h in heads}
    assert found.results["kept"] == 6
    assert found.results["training_accuracy"] == 1.0
