"""Thresholds of selective prediction: error rates of the guarantees by enumeration and by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from hydractl.metrics import selective
from hydractl.metrics.selective import (
    NOTHING,
    accepted_and_wrong,
    errors_among_accepted,
    fewest,
    ranks_to_test,
)


def drawn(count, *, seed, ties=False):
    """Return scores and hits; the probability of an error grows with the score."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(count, generator=generator)
    if ties:
        scores = (scores * 12).floor() / 12
    return scores, torch.rand(count, generator=generator) >= risk_at(scores)


def risk_at(scores):
    return 0.4 * scores**2


def true_risk(below, *, ties=False):
    """Return the error rate below a threshold."""
    grid = torch.linspace(0, 1, 120_001)[:-1]
    grid = (grid * 12).floor() / 12 if ties else grid
    return float(risk_at(grid[grid < below]).mean())


@pytest.mark.parametrize("ties", [False, True])
def test_the_promise_is_broken_no_oftener_than_it_says(ties):
    """The guarantee fails in at most `delta` of all draws, and most of the possible samples are accepted."""
    found = [errors_among_accepted(*drawn(600, seed=s, ties=ties), risk=0.1, delta=0.2) for s in range(100)]

    broken = sum(one.below is not None and true_risk(one.below, ties=ties) > 0.1 for one in found)
    assert broken <= 0.2 * 100
    most = 0.75**0.5  # fraction accepted at a risk of 0.1
    assert np.median([one.accepted / 600 for one in found]) > 0.75 * most
    assert sum(one.accepted > 0 for one in found) > 92


ATOMS = {
    "everywhere a little too risky": ([0.3, 0.25, 0.25, 0.2], [0.401, 0.401, 0.401, 0.401]),
    "from the second score on": ([0.4, 0.2, 0.2, 0.2], [0.39, 0.43, 0.41, 1.0]),
    "at first alone": ([0.5, 0.2, 0.2, 0.1], [0.401, 0.3, 0.3, 0.6]),
    "again after some that are not": ([0.3, 0.3, 0.3, 0.1], [0.401, 0.1, 0.71, 0.0]),
    "where nearly all scores are equal": ([0.04, 0.86, 0.05, 0.05], [1.0, 0.375, 0.4, 0.0]),
}
"""Distributions of four scores: (probability of each score, probability of an error given the score). The
names state where the risk below a score is too high."""


def test_errors_among_accepted_in_all_draws_there_are(monkeypatch):
    """The exact probability of a threshold with too high a risk, summed over all draws of eight samples."""
    risk, delta, count = 0.4, 0.24, 8
    monkeypatch.setattr(selective, "ROOTS", 1.0)
    ranks = ranks_to_test(count, risk, delta)
    assert ranks == [3, 6, 7]
    # the same ranks for all 8,000 draws, computed once
    monkeypatch.setattr(selective, "ranks_to_test", lambda *_: ranks)
    kinds, last = torch.arange(8), count + 7
    broken = dict.fromkeys(ATOMS, 0.0)
    for walls in itertools.combinations(range(last), 7):
        counts = np.diff((-1, *walls, last)) - 1
        # each kind is a score and whether the answer is right
        samples = kinds.repeat_interleave(torch.from_numpy(counts))
        found = errors_among_accepted((samples // 2).double(), samples % 2 == 1, risk=risk, delta=delta)
        if found.below is None:
            continue
        ways = math.factorial(count) / math.prod(map(math.factorial, counts.tolist()))
        for name, (shares, wrong) in ATOMS.items():
            below = np.cumsum(np.multiply(shares, wrong)) / np.cumsum(shares)
            if below[math.ceil(found.below) - 1] > risk:
                chances = [p * q for p, w in zip(shares, wrong, strict=True) for q in (w, 1 - w)]
                broken[name] += ways * float(np.prod(np.array(chances) ** counts))
    assert all(0 < chance <= delta for chance in broken.values()), broken


def test_the_sequence_stops_at_the_first_threshold_that_fails():
    """Later thresholds would pass, even with a `delta` divided among all tests."""
    ranks = ranks_to_test(400, 0.05, 0.05)
    hits = torch.ones(400, dtype=torch.bool)
    scores = torch.arange(400.0)
    assert errors_among_accepted(scores, hits, risk=0.05, delta=0.05).accepted == ranks[-1] == 399
    hits[:3] = False  # the first threshold allows two errors, the last allows twelve
    assert ranks[0] == 93
    assert errors_among_accepted(scores, hits, risk=0.05, delta=0.05) == NOTHING


def test_each_threshold_is_tested_at_the_whole_of_delta():
    """93 samples with one error suffice, for any number of later thresholds."""
    scores, hits = torch.arange(400.0), torch.zeros(400, dtype=torch.bool)
    hits[:93] = True
    hits[5] = False
    found = errors_among_accepted(scores, hits, risk=0.05, delta=0.05)

    assert (found.accepted, found.errors) == (93, 1)
    assert beta.ppf(1 - 0.05, 2, 92) <= 0.05 < beta.ppf(1 - 0.05, 2, 91)  # Clopper-Pearson
    assert len(ranks_to_test(400, 0.05, 0.05)) > 10


@pytest.mark.parametrize(("count", "risk", "delta"), [(60, 0.05, 0.05), (400, 0.1, 0.05), (3000, 0.01, 0.2)])
def test_ranks_are_where_one_error_more_is_allowed(count, risk, delta):
    ranks = ranks_to_test(count, risk, delta)

    for rank in ranks[:-1]:
        allowed = next(e for e in itertools.count() if beta.ppf(1 - delta, e + 2, rank - e - 1) > risk)
        assert beta.ppf(1 - delta, allowed + 1, rank - allowed) <= risk
        before = rank - 1 - allowed
        assert before == 0 or beta.ppf(1 - delta, allowed + 1, before) > risk
    assert ranks == sorted({*ranks})
    assert ranks[-1] == count - 1
    assert ranks[0] <= max(6 * count**0.5, fewest(risk, delta) - 1)


def test_what_is_accepted_is_below_and_counted():
    scores, hits = drawn(2000, seed=0)
    found = errors_among_accepted(scores, hits, risk=0.1, delta=0.05)

    chosen = scores < found.below
    assert (found.accepted, found.errors) == (int(chosen.sum()), int((~hits[chosen]).sum()))
    nearest = scores[scores >= found.below].min()
    assert 0 < nearest - found.below <= 1.1e-6  # distance below a sample's score, up to rounding
    ranks = ranks_to_test(2000, 0.1, 0.05)
    wrong = (~hits[scores.argsort()]).cumsum(0)
    for rank in ranks[: ranks.index(found.accepted) + 1]:
        errors = int(wrong[rank - 1])
        assert beta.ppf(1 - 0.05, errors + 1, rank - errors) <= 0.1
    looser = ranks[ranks.index(found.accepted) + 1]
    errors = int(wrong[looser - 1])
    assert beta.ppf(1 - 0.05, errors + 1, looser - errors) > 0.1


def test_equal_scores_are_accepted_together_or_not_at_all():
    scores = torch.tensor([0.0] * 400 + [1.0] * 400)
    hits = torch.tensor([True] * 400 + [False] * 400)

    found = errors_among_accepted(scores, hits, risk=0.05, delta=0.05)
    assert found == (pytest.approx(1.0, abs=1.1e-6), 400, 0)
    assert found.below < 1.0
    all_right = torch.ones(800, dtype=torch.bool)
    assert errors_among_accepted(torch.zeros(800), all_right, risk=0.05, delta=0.05) == NOTHING
    assert accepted_and_wrong(torch.zeros(800), all_right, risk=0.05).accepted == 800
    hits[:400:9] = False  # 45 errors, more than the 40 allowed
    assert accepted_and_wrong(scores, hits, risk=0.05) == NOTHING


@pytest.mark.parametrize("least", [1e-3, 1e-9])
def test_whoever_rounds_otherwise_accepts_the_same(least):
    """Scores computed in another order differ by rounding; neighbouring scores must stay separate."""
    scores = 1.9 + least * torch.arange(400.0, dtype=torch.float64)
    right = torch.ones(400, dtype=torch.bool)
    again = scores * (1 + min(2e-7, least / 10) * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(200))
    for found in (
        errors_among_accepted(scores, right, risk=0.05, delta=0.05),
        accepted_and_wrong(scores, right, risk=0.05),
    ):
        assert found.accepted == int((scores < found.below).sum()) == int((again < found.below).sum())


def test_too_few_samples_can_tell_nothing():
    assert fewest(0.01, 0.05) == 300
    assert 0.99**299 <= 0.05 < 0.99**298
    right = torch.ones(300, dtype=torch.bool)
    assert ranks_to_test(300, 0.01, 0.05) == [299]
    scores = torch.arange(300.0)
    assert errors_among_accepted(scores, right, risk=0.01, delta=0.05) == (pytest.approx(299.0), 299, 0)
    assert errors_among_accepted(scores[:299], right[:299], risk=0.01, delta=0.05) == NOTHING
    right[7] = False
    assert errors_among_accepted(scores, right, risk=0.01, delta=0.05) == NOTHING

    assert fewest(0.01, None) == 99
    assert accepted_and_wrong(scores[:99], torch.ones(99, dtype=torch.bool), risk=0.01).accepted == 99
    assert accepted_and_wrong(scores[:98], torch.ones(98, dtype=torch.bool), risk=0.01) == NOTHING


@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=20),
    st.sampled_from([0.02, 0.05, 0.1, 0.25, 1 / 3, 0.5, 0.9]),
)
def test_accepted_and_wrong_of_each_sample_by_the_others(pairs, risk):
    """Conformal risk control: each sample in turn is new, and at most `risk` of them are accepted and wrong."""
    scores = torch.tensor([float(score) for score, _ in pairs])
    hits = torch.tensor([hit for _, hit in pairs])
    losses = 0
    for new in range(len(pairs)):
        others = torch.arange(len(pairs)) != new
        below = accepted_and_wrong(scores[others], hits[others], risk=risk).below
        losses += below is not None and bool(scores[new] < below) and not bool(hits[new])
    assert losses / len(pairs) <= risk


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.5])
def test_accepted_and_wrong_gives_nothing_away(risk):
    """If every answer is wrong and all scores differ, the bound is reached."""
    scores, hits = torch.arange(20.0), torch.zeros(19, dtype=torch.bool)
    belows = [accepted_and_wrong(scores[scores != new], hits, risk=risk).below for new in scores]
    losses = [below is not None and bool(new < below) for new, below in zip(scores, belows, strict=True)]
    # at 0.05 no threshold excludes only the first sample
    assert sum(losses) == pytest.approx(20 * risk - (risk == 0.05))


def test_accepted_and_wrong_counts_all_inputs():
    """At equal risk more samples are accepted than by `errors_among_accepted`."""
    scores, hits = drawn(2000, seed=1)
    found = accepted_and_wrong(scores, hits, risk=0.1)

    assert found.errors == 199  # (199 + 1) / 2001 <= 0.1 < (200 + 1) / 2001
    assert found.accepted > errors_among_accepted(scores, hits, risk=0.1, delta=0.05).accepted
    lenient = accepted_and_wrong(scores, hits, risk=0.5)
    assert lenient.accepted == 2000
    assert 0 < lenient.below - float(scores.max()) < 3e-6


@pytest.mark.parametrize(
    ("scores", "risk", "delta", "message"),
    [
        (torch.zeros(3), 0.1, 0.1, r"got \(3,\), \(2,\)"),
        (torch.tensor([0.0, torch.nan]), 0.1, 0.1, "finite"),
        (torch.zeros(2), 0.0, 0.1, "risk must be"),
        (torch.zeros(2), 0.1, 1.0, "delta must be"),
    ],
)
def test_bad_arguments(scores, risk, delta, message):
    right = torch.ones(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        errors_among_accepted(scores, right, risk=risk, delta=delta)
    if "delta" not in message:
        with pytest.raises(ValueError, match=message):
            accepted_and_wrong(scores, right, risk=risk)
