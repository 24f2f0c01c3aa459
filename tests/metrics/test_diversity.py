"""Diversity: bounds, equal members, opposite members, and hand values."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.diversity import disagreement, mutual_information, predictive_entropy

ALL = [mutual_information, disagreement, predictive_entropy]


def members_probs(seed: int, members: int, classes: int = 3) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(members, 10, classes, generator=source)).softmax(2)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_bounds(seed, members):
    probs = members_probs(seed, members)

    assert 0 <= mutual_information(probs) <= min(math.log(members) + 1e-12, predictive_entropy(probs))
    assert 0 <= predictive_entropy(probs) <= math.log(3) + 1e-6
    assert 0 <= disagreement(probs) <= 1


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_disagreement_counts_pairs(seed, members):
    probs = members_probs(seed, members)
    votes = probs.argmax(2)

    pairs = [float((a != b).double().mean()) for a, b in combinations(votes, 2)]

    assert disagreement(probs) == pytest.approx(sum(pairs) / len(pairs))


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_the_order_of_members_does_not_matter(seed, members):
    probs = members_probs(seed, members)

    for metric in ALL:
        assert metric(probs.flip(0)) == pytest.approx(metric(probs), abs=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_equal_members_do_not_differ(seed, members):
    probs = members_probs(seed, 1).expand(members, -1, -1)

    assert mutual_information(probs) == pytest.approx(0, abs=1e-12)
    assert disagreement(probs) == 0.0
    assert predictive_entropy(probs) == pytest.approx(predictive_entropy(probs[:1]))


def test_rounding_makes_no_negative_information():
    seeds = [seed for seed in range(200) if _gain(members_probs(seed, 1).expand(3, -1, -1).double()) < 0]

    assert seeds
    for seed in seeds:
        assert mutual_information(members_probs(seed, 1).expand(3, -1, -1)) == 0


def _gain(probs):
    """Compute the mutual information by the definition, without a clamp at 0."""
    mean = probs.mean(0)
    return float((torch.special.entr(mean).sum(-1) - torch.special.entr(probs).sum(-1).mean(0)).mean())


def test_certain_and_opposite_members_differ_most():
    probs = torch.eye(3)[:, None]

    assert mutual_information(probs) == pytest.approx(math.log(3))
    assert predictive_entropy(probs) == pytest.approx(math.log(3))
    assert disagreement(probs) == 1.0


def test_three_members_disagree_by_thirds():
    one_apart = torch.eye(2)[[0, 0, 1]][:, None]

    assert disagreement(one_apart) == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", ALL)
def test_refuses_probabilities_without_members(metric):
    with pytest.raises(ValueError, match=r"3 non-empty axes, got shape \(2, 2\)"):
        metric(torch.eye(2))
