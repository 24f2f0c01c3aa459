from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.scoring.job import min_max, normalized, warn_of_unlike_towers
from support.builders import base
from support.jobs import job_for
from support.variants import variant

SCORES = st.dictionaries(
    st.sampled_from(["text", "vision"]),
    st.lists(st.lists(st.floats(0, 1e6), min_size=0, max_size=5), min_size=1, max_size=4),
    min_size=1,
)
HOWS = st.sampled_from(["none", "layer", "tower"])


def flat(tables):
    return [x for rows in tables.values() for row in rows for x in row]


def ranks(row):
    return sorted(range(len(row)), key=lambda i: (row[i], i))


@given(tables=SCORES, preprocess=HOWS)
def test_shapes_stay_and_no_head_overtakes_another_of_its_layer(tables, preprocess):
    found = normalized(tables, preprocess)

    assert {n: [len(r) for r in rows] for n, rows in found.items()} == {
        n: [len(r) for r in rows] for n, rows in tables.items()
    }
    for name, table in tables.items():
        for before, after in zip(table, found[name], strict=True):
            assert all(
                after[i] <= after[j]
                for i in range(len(before))
                for j in range(len(before))
                if before[i] <= before[j]
            )


@given(tables=SCORES)
def test_tower_keeps_the_order_of_a_tower(tables):
    found = normalized(tables, "tower")

    for name in tables:
        before, after = ([x for row in t[name] for x in row] for t in (tables, found))
        order = ranks(before)
        assert all(after[i] <= after[j] for i, j in pairwise(order))


@given(tables=SCORES)
def test_min_max_lies_in_0_and_1_and_reaches_both_or_is_0(tables):
    found = flat(min_max(tables))

    assert all(0 <= x <= 1 for x in found)
    if len(set(flat(tables))) > 1:
        assert {min(found), max(found)} == {0.0, 1.0}
    else:
        assert set(found) <= {0.0}


def test_none_changes_nothing():
    tables = {"vision": [[1.0, 2.0], []]}

    assert normalized(tables, "none") == tables


def test_layer_divides_by_the_length_and_tower_by_the_root_mean_square():
    tables = {"text": [[3.0, 4.0], [0.0, 0.0]], "vision": [[30.0, 40.0], [0.0, 0.0]]}

    by_layer, by_tower = normalized(tables, "layer"), normalized(tables, "tower")

    assert by_layer["text"] == by_layer["vision"] == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    assert by_tower["text"] == by_tower["vision"] == [pytest.approx([1.2, 1.6]), [0.0, 0.0]]


def test_an_unknown_way_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="unknown normalization: rows"):
        normalized({"vision": [[1.0]]}, "rows")


def test_one_tower_needs_no_warning(progress_log):
    warn_of_unlike_towers(job_for(base(variant("class-token"))), "none")

    assert progress_log.warnings == []
