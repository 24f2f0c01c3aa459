"""Comparing masks: symmetry, bounds, equal and opposite masks, hand values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.heads.compare import jaccard, jensen_shannon, overlap
from hydractl.heads.masks import TowerMask, dropped

ALL = [overlap, jaccard, jensen_shannon]


def one_tower(*drop: tuple[int, ...], num_heads: int = 4) -> dict[str, TowerMask]:
    keep = tuple(tuple(head for head in range(num_heads) if head not in gone) for gone in drop)
    return {"t": TowerMask(num_heads=num_heads, keep=keep)}


LAYER = st.sets(st.integers(0, 3)).map(tuple)
MASKS = st.lists(LAYER, min_size=3, max_size=3).filter(any).map(lambda drop: one_tower(*drop))


@given(MASKS, MASKS)
def test_comparisons_are_symmetric_and_bounded(first, second):
    for compare in ALL:
        assert compare(first, second) == pytest.approx(compare(second, first), abs=1e-12)
    assert 0 <= jaccard(first, second) <= overlap(first, second) <= 1
    assert 0 <= jensen_shannon(first, second) <= math.log(2) + 1e-12


@given(MASKS)
def test_a_mask_equals_itself(mask):
    assert overlap(mask, mask) == jaccard(mask, mask) == 1.0
    assert jensen_shannon(mask, mask) == 0.0


@given(MASKS, MASKS)
def test_overlap_and_jaccard_say_the_same(first, second):
    share = jaccard(first, second)

    assert overlap(first, second) == pytest.approx(2 * share / (1 + share))


@given(MASKS, MASKS)
def test_overlap_of_equal_budgets_is_common_over_budget(first, second):
    mine, other = set(dropped(first)), set(dropped(second))
    if len(mine) == len(other):
        assert overlap(first, second) == pytest.approx(len(mine & other) / len(mine))


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


def test_masks_that_remove_nothing():
    full, some = one_tower((), ()), one_tower((0,), ())

    assert overlap(full, full) == jaccard(full, full) == 1.0
    assert overlap(full, some) == jaccard(full, some) == 0.0
    with pytest.raises(ValueError, match="must remove heads to be compared by layer, got 0 and 1"):
        jensen_shannon(full, some)


@pytest.mark.parametrize("compare", ALL)
def test_refuses_masks_of_different_models(compare):
    with pytest.raises(ValueError, match=r"different models: .*num_heads=4.*num_heads=3"):
        compare(one_tower((0,)), one_tower((0,), num_heads=3))
