"""Hard concrete gates: formulas against sampling, and heads that a penalty closes."""

from __future__ import annotations

import math

import pytest
import torch

from hydractl.research.scores.l0 import CLOSED, HardConcrete, hard_concrete, openness, score_l0
from hydractl.research.scores.options import L0Settings
from support.gates import IDLE, planted, training_job

DOUBLE = torch.float64


def flat(scores):
    return {(layer, h): s for layer, row in enumerate(scores["vision"]) for h, s in enumerate(row)}


@pytest.mark.parametrize("log_alpha", [-3.0, -1.0, 0.0, 0.7, 2.5])
def test_openness_is_the_share_of_noisy_gates_that_are_not_zero(log_alpha):
    u = torch.rand(400_000, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)

    gates = hard_concrete(torch.full_like(u, log_alpha), noise=u)

    wanted = openness(torch.tensor(log_alpha, dtype=DOUBLE)).item()
    spread = math.sqrt(wanted * (1 - wanted) / len(u))
    assert (gates != 0).double().mean().item() == pytest.approx(wanted, abs=5 * spread)
    assert gates.min() >= 0
    assert gates.max() <= 1


def test_a_gate_of_half_is_the_formula_written_out():
    u, log_alpha = 0.3, 0.4

    found = hard_concrete(torch.tensor([log_alpha], dtype=DOUBLE), noise=torch.tensor([u], dtype=DOUBLE))

    s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + log_alpha) / 0.33))
    assert found.item() == pytest.approx(min(1.0, max(0.0, s * 1.2 - 0.1)), rel=1e-12)


def test_without_noise_a_gate_is_closed_up_to_the_bound_and_rises_from_there():
    log_alpha = torch.linspace(CLOSED - 2, 4, 2001, dtype=DOUBLE)

    gates = hard_concrete(log_alpha)

    assert torch.equal(gates > 1e-12, log_alpha > CLOSED + 1e-9)
    assert (gates.diff() >= 0).all()
    assert hard_concrete(torch.tensor(0.0, dtype=DOUBLE)).item() == pytest.approx(0.5)


def test_noise_hangs_on_seed_and_step_alone():
    one, other = HardConcrete(torch.zeros(9, dtype=DOUBLE)), HardConcrete(torch.zeros(9, dtype=DOUBLE))

    one.begin(0, seed=1)
    one.begin(5, seed=1)
    other.begin(5, seed=1)

    assert torch.equal(one(), other())
    other.begin(6, seed=1)
    assert not torch.equal(one(), other())
    other.begin(5, seed=2)
    assert not torch.equal(one(), other())
    assert torch.equal(one.eval()(), other.eval()())


def learned(penalty, *, epochs, gate_lr):
    settings = L0Settings(epochs=epochs, gate_lr=gate_lr, penalty=penalty)
    return score_l0(training_job(planted(), settings=settings))


@pytest.fixture(scope="module")
def by_penalty():
    """Return the result of each penalty, for a model in which half of the heads have no effect."""
    return {penalty: learned(penalty, epochs=10, gate_lr=0.6) for penalty in (0.0, 0.02, 0.3)}


@pytest.mark.more
def test_heads_that_do_nothing_are_closed_and_the_others_are_not():
    found = learned(0.01, epochs=20, gate_lr=0.3)

    closed = {head for head, s in flat(found.scores).items() if s <= CLOSED}
    assert closed == {(layer, h) for layer, heads in enumerate(IDLE) for h in heads}
    assert found.results["open"] == 6


@pytest.mark.more
def test_a_larger_penalty_leaves_fewer_heads_open(by_penalty):
    most, some, few = (found.results["open"] for found in by_penalty.values())

    assert most == 12 > some > few


@pytest.mark.more
def test_the_open_heads_have_the_highest_scores(by_penalty):
    for found in by_penalty.values():
        order = sorted(flat(found.scores).values(), reverse=True)
        assert all(s > CLOSED for s in order[: found.results["open"]])
        assert all(s <= CLOSED for s in order[found.results["open"] :])
