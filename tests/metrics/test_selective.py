"""Thresholds: of those that accept much enough, and how often the promise is broken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta

from hydractl.metrics.selective import fewest, ranks_to_test, select


def drawn(count, *, seed, ties=False):
    """Return scores, and whether answers are right; wrong ones get likelier with the score."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator)
    if ties:
        scores = (scores * 12).floor() / 12
    return scores, torch.rand(count, generator=generator) >= risk_at(scores)


def risk_at(scores):
    return 0.4 * scores**2


def true_risk(below, *, ties=False):
    """Return the share of wrong answers below a threshold."""
    grid = torch.linspace(0, 1, 120_001)[:-1]
    grid = (grid * 12).floor() / 12 if ties else grid
    return float(risk_at(grid[grid < below]).mean())


@pytest.mark.parametrize("ties", [False, True])
def test_the_promise_is_broken_no_oftener_than_it_says(ties):
    """And is worth something: not much less is accepted than might be."""
    found = [select(*drawn(600, seed=s, ties=ties), risk=0.1, delta=0.2) for s in range(100)]

    broken = sum(one is not None and true_risk(one.below, ties=ties) > 0.1 for one in found)
    assert broken <= 0.2 * 100
    most = 0.75**0.5  # the share whose risk is 0.1
    assert np.median([one.accepted / 600 for one in found if one]) > 0.6 * most
    assert sum(one is not None for one in found) > 92


def test_what_is_accepted_is_below_and_counted():
    scores, hits = drawn(2000, seed=0)
    found = select(scores, hits, risk=0.1, delta=0.05)

    chosen = scores < found.below
    assert (found.accepted, found.errors) == (int(chosen.sum()), int((~hits[chosen]).sum()))
    nearest = scores[scores >= found.below].min()
    assert 0 < nearest - found.below <= 1.1e-6  # of a sample, but for what rounding may be
    tests = len(ranks_to_test(2000, 0.1, 0.05))
    assert found.accepted in ranks_to_test(2000, 0.1, 0.05)
    upper = beta.ppf(1 - 0.05 / tests, found.errors + 1, found.accepted - found.errors)  # Clopper-Pearson
    assert upper <= 0.1
    looser = next(r for r in reversed(ranks_to_test(2000, 0.1, 0.05)) if r > found.accepted)
    wrong = int((~hits[scores.argsort()[:looser]]).sum())
    assert beta.ppf(1 - 0.05 / tests, wrong + 1, looser - wrong) > 0.1


def test_equal_scores_are_accepted_together_or_not_at_all():
    scores = torch.tensor([0.0] * 400 + [1.0] * 400)
    hits = torch.tensor([True] * 400 + [False] * 400)

    found = select(scores, hits, risk=0.05, delta=0.05)
    assert found == (pytest.approx(1.0, abs=1.1e-6), 400, 0)
    assert found.below < 1.0
    assert select(torch.zeros(800), torch.ones(800, dtype=torch.bool), risk=0.05, delta=0.05) is None


@pytest.mark.parametrize("least", [1e-3, 1e-9])
def test_whoever_rounds_otherwise_accepts_the_same(least):
    """A score that is computed in another order is off by a few units in its last place; near ones still stay apart."""
    scores = 1.9 + least * torch.arange(400.0, dtype=torch.float64)
    found = select(scores, torch.ones(400, dtype=torch.bool), risk=0.05, delta=0.05)

    again = scores * (1 + min(2e-7, least / 10) * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(200))
    assert found.accepted == int((scores < found.below).sum()) == int((again < found.below).sum())


def test_too_few_samples_can_tell_nothing():
    assert fewest(0.01, 0.05) == 299
    assert 0.99**299 <= 0.05 < 0.99**298
    right = torch.ones(300, dtype=torch.bool)
    assert ranks_to_test(300, 0.01, 0.05) == [299]
    assert select(torch.arange(300.0), right, risk=0.01, delta=0.05) == (pytest.approx(299.0), 299, 0)
    assert select(torch.arange(299.0), right[:299], risk=0.01, delta=0.05) is None
    right[7] = False
    assert select(torch.arange(300.0), right, risk=0.01, delta=0.05) is None


@pytest.mark.parametrize(
    ("scores", "risk", "delta", "message"),
    [
        (torch.zeros(3), 0.1, 0.1, r"got \(3,\), \(2,\)"),
        (torch.tensor([0.0, torch.nan]), 0.1, 0.1, "finite"),
        (torch.zeros(2), 0.0, 0.1, "risk must lie"),
        (torch.zeros(2), 0.1, 1.0, "delta must lie"),
    ],
)
def test_bad_arguments(scores, risk, delta, message):
    with pytest.raises(ValueError, match=message):
        select(scores, torch.ones(2, dtype=torch.bool), risk=risk, delta=delta)
