"""Greedy choice of diverse candidates: none below the median, and each step adds the best candidate."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from hydractl.heads.masks import choose_diverse, eligible_candidates


@st.composite
def tasks(draw):
    """Objectives with ties, and a set of points per candidate. Diversity is the number of covered points."""
    values = draw(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=12))
    covers = [draw(st.frozensets(st.integers(0, 9))) for _ in values]
    members = draw(st.integers(1, len(values)))
    return values, (lambda which: float(len(frozenset().union(*(covers[i] for i in which))))), members


@given(tasks())
def test_none_is_below_the_median_unless_too_few_are_as_good(task):
    values, _, members = task

    found = eligible_candidates(values, members)

    good = [i for i, v in enumerate(values) if v >= statistics.median_low(values)]
    assert len(found) == max(members, len(good))
    assert set(good) <= set(found)
    assert min(values[i] for i in found) >= max(
        (v for i, v in enumerate(values) if i not in found), default=-1
    )
    if len(values) >= 2 * members - 1:
        assert list(found) == good


@given(tasks())
def test_the_first_is_the_best_and_each_next_makes_the_set_most_diverse(task):
    values, diversity, members = task

    chosen = choose_diverse(values, diversity, members=members)

    allowed = eligible_candidates(values, members)
    assert len(set(chosen)) == members
    assert set(chosen) <= set(allowed)
    assert chosen[0] == values.index(max(values))
    for step in range(1, members):
        before, left = chosen[:step], [i for i in allowed if i not in chosen[:step]]
        gains = {i: diversity((*before, i)) for i in left}
        assert chosen[step] == min(i for i in left if gains[i] == max(gains.values()))


@given(tasks())
def test_as_many_candidates_as_members_are_all_chosen(task):
    values, diversity, _ = task

    assert sorted(choose_diverse(values, diversity, members=len(values))) == list(range(len(values)))
