"""Comparing choices of heads: symmetry, bounds, equal and opposite choices, scipy as the oracle, hand values."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from hydractl.heads.compare import (
    chance_overlap,
    jaccard,
    jensen_shannon,
    kendall,
    overlap,
    spearman,
    standing,
)
from hydractl.heads.masks import best_mask, dropped, removal_order
from hydractl.manifest.head_mask import TowerKeep, TowerShape

ALL = [overlap, chance_overlap, jaccard, jensen_shannon]
RANKED = [spearman, kendall]


def tower(*drop: tuple[int, ...], num_heads: int = 4) -> TowerKeep:
    keep = tuple(tuple(head for head in range(num_heads) if head not in gone) for gone in drop)
    return TowerKeep(num_heads=num_heads, keep=keep)


def one_tower(*drop: tuple[int, ...], num_heads: int = 4) -> dict[str, TowerKeep]:
    return {"t": tower(*drop, num_heads=num_heads)}


LAYER = st.sets(st.integers(0, 3)).map(tuple)
LAYERS = st.lists(LAYER, min_size=3, max_size=3)
MASKS = st.tuples(LAYERS, LAYERS).map(lambda two: {"text": tower(*two[0]), "vision": tower(*two[1])})
SOME = MASKS.filter(dropped)
VALUES = st.integers(-3, 3) | st.floats(-1e6, 1e6).map(lambda x: x + 0.0)
TABLES = st.lists(VALUES, min_size=12, max_size=12).map(
    lambda v: {"text": (tuple(v[:3]), tuple(v[3:6])), "vision": (tuple(v[6:9]), tuple(v[9:]))}
)


def flat(table):
    return [value for rows in table.values() for row in rows for value in row]


def by_layer(mask):
    return [len(heads) for part in mask.values() for heads in part.drop]


@given(SOME, SOME)
def test_comparisons_are_symmetric_and_bounded(first, second):
    for compare in ALL:
        assert compare(first, second) == pytest.approx(compare(second, first), abs=1e-12)
    assert 0 <= jaccard(first, second) <= overlap(first, second) <= 1
    assert 0 < chance_overlap(first, second) <= 1
    assert 0 <= jensen_shannon(first, second) <= math.log(2) + 1e-12


@given(SOME)
def test_a_mask_equals_itself(mask):
    assert overlap(mask, mask) == jaccard(mask, mask) == 1.0
    assert jensen_shannon(mask, mask) == 0.0


@given(SOME, SOME)
def test_a_smaller_choice_within_a_larger_one_overlaps_wholly(first, second):
    mine, other = set(dropped(first)), set(dropped(second))

    assert (overlap(first, second) == 1.0) == (mine <= other or other <= mine)


@given(SOME, SOME)
def test_overlap_of_equal_budgets_is_common_over_budget(first, second):
    mine, other = set(dropped(first)), set(dropped(second))
    if len(mine) == len(other):
        share = jaccard(first, second)
        assert overlap(first, second) == pytest.approx(len(mine & other) / len(mine))
        assert overlap(first, second) == pytest.approx(2 * share / (1 + share))


@given(SOME, SOME)
def test_divergence_is_scipy_s_distance_squared(first, second):
    expected = distance.jensenshannon(by_layer(first), by_layer(second)) ** 2

    assert jensen_shannon(first, second) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("mine", "other"), [(1, 1), (1, 3), (2, 2), (3, 4)])
def test_chance_overlap_is_the_mean_over_all_choices(mine, other):
    every = [one_tower(tuple(h for h in range(4) if bits[h])) for bits in product((0, 1), repeat=4)]
    pairs = [
        Fraction(overlap(a, b)).limit_denominator(100)
        for a in every
        if len(dropped(a)) == mine
        for b in every
        if len(dropped(b)) == other
    ]

    assert chance_overlap(one_tower(tuple(range(mine))), one_tower(tuple(range(other)))) == pytest.approx(
        float(sum(pairs) / len(pairs))
    )


def test_nothing_in_common():
    first, second = one_tower((0, 1), ()), one_tower((), (0, 1))

    assert overlap(first, second) == jaccard(first, second) == 0.0
    assert jensen_shannon(first, second) == pytest.approx(math.log(2))


def test_the_same_depths_with_other_heads():
    first, second = one_tower((0,), (1,)), one_tower((2,), (3,))

    assert overlap(first, second) == 0.0
    assert jensen_shannon(first, second) == 0.0


def test_divergence_by_hand():
    # (1, 0) against (1/2, 1/2): the mean is (3/4, 1/4).
    expected = 0.5 * math.log(4 / 3) + 0.5 * (0.5 * math.log(2 / 3) + 0.5 * math.log(2))

    assert jensen_shannon(one_tower((0, 1), ()), one_tower((0,), (0,))) == pytest.approx(expected)


def test_two_choices_of_eight_heads_in_twelve_share_four():
    """Why the paper's 25 % must be of removed heads."""
    first = one_tower((0, 1, 2, 3), num_heads=12)
    second = one_tower((4, 5, 6, 7), num_heads=12)
    kept = set(first["t"].keep[0]) & set(second["t"].keep[0])

    assert len(kept) == 4
    assert overlap(first, second) == 0.0
    assert chance_overlap(first, second) == pytest.approx(1 / 3)


def test_masks_that_remove_nothing():
    full, some = one_tower((), ()), one_tower((0,), ())

    assert overlap(full, full) == jaccard(full, full) == chance_overlap(full, full) == 1.0
    assert overlap(full, some) == jaccard(full, some) == chance_overlap(full, some) == 0.0
    assert jensen_shannon(full, some) is jensen_shannon(full, full) is None


@pytest.mark.parametrize("compare", ALL)
def test_refuses_masks_of_different_models(compare):
    with pytest.raises(ValueError, match=r"different models: .*num_heads=4.*num_heads=3"):
        compare(one_tower((0,)), one_tower((0,), num_heads=3))


@given(TABLES, TABLES)
def test_correlations_are_scipy_s_of_the_flattened_tables(first, second):
    if min(len(set(flat(table))) for table in (first, second)) < 2:
        return
    mine, other = flat(first), flat(second)

    assert spearman(first, second) == pytest.approx(stats.pearsonr(*map(stats.rankdata, (mine, other)))[0])
    assert kendall(first, second) == pytest.approx(stats.kendalltau(mine, other).statistic)


@given(TABLES, TABLES)
def test_correlations_are_symmetric_and_bounded(first, second):
    for compare in RANKED:
        found = compare(first, second)
        assert found == pytest.approx(compare(second, first))
        assert found is None or -1 <= found <= 1


@given(TABLES, TABLES)
def test_correlations_know_ranks_only(first, second):
    ranks = {value: rank for rank, value in enumerate(sorted(set(flat(first))))}
    mapped = {
        name: tuple(tuple(ranks[v] ** 3 - 7.0 for v in row) for row in rows) for name, rows in first.items()
    }

    for compare in RANKED:
        assert compare(mapped, second) == pytest.approx(compare(first, second))


@given(TABLES)
def test_scores_rank_alike_with_themselves_and_oppositely_when_negated(table):
    negated = {name: tuple(tuple(-v for v in row) for row in rows) for name, rows in table.items()}
    for compare in RANKED:
        if len(set(flat(table))) < 2:
            assert compare(table, table) is None
        else:
            assert compare(table, table) == pytest.approx(1.0)
            assert compare(table, negated) == pytest.approx(-1.0)


@pytest.mark.parametrize("compare", RANKED)
def test_ties_count_half(compare):
    """As of a greedy method that stops early: what it never removed is equal."""
    whole, early = {"t": ((0.0, 1.0, 2.0, 3.0),)}, {"t": ((0.0, 1.0, 2.0, 2.0),)}

    assert 0.9 < compare(whole, early) < 1.0
    assert compare(early, early) == pytest.approx(1.0)


@pytest.mark.parametrize("compare", RANKED)
def test_refuses_scores_of_different_models(compare):
    with pytest.raises(ValueError, match=r"different models: .*num_heads=2.*num_heads=1"):
        compare({"t": ((1.0, 2.0),)}, {"t": ((1.0,), (2.0,))})


@given(TABLES)
def test_standing_is_the_empirical_distribution(table):
    every = flat(table)
    found = flat(standing(table))

    assert found == [sum(other <= value for other in every) / len(every) for value in every]
    assert max(found) == 1.0
    assert min(found) > 0


@given(TABLES, st.integers(0, 12))
def test_heads_that_go_first_stand_no_higher(table, removals):
    shape = {"text": TowerShape(2, 3), "vision": TowerShape(2, 3)}
    mask = best_mask(removal_order(table), shape, removals=removals)
    placed = {
        (n, i, h): v for n, t in standing(table).items() for i, r in enumerate(t) for h, v in enumerate(r)
    }
    gone = {tuple(head) for head in dropped(mask)}

    if gone and len(gone) < len(placed):
        assert max(placed[h] for h in gone) <= min(v for h, v in placed.items() if h not in gone)
