"""Masks and budgets: counts, complements, prefixes, ties, and refusals that name layer and head."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hydractl.heads.budget import HeadBudget, total_heads
from hydractl.heads.masks import (
    all_heads,
    best_mask,
    best_mask_per_layer,
    drop_heads,
    full_mask,
    removal_order,
    shape_of,
    shape_of_importance,
)
from hydractl.manifest.head_mask import HeadId, TowerKeep, TowerShape
from support.masks import dropped_heads

SHAPE = {"vision": TowerShape(3, 4), "text": TowerShape(2, 2)}


@st.composite
def tower_masks(draw) -> TowerKeep:
    num_heads = draw(st.integers(1, 6))
    layer = st.sets(st.integers(0, num_heads - 1)).map(lambda heads: tuple(sorted(heads)))
    return TowerKeep(num_heads=num_heads, keep=tuple(draw(st.lists(layer, min_size=1, max_size=5))))


@given(tower_masks())
def test_kept_and_removed_add_up(mask):
    assert mask.num_kept + mask.removed == total_heads({"t": mask}) == total_heads(shape_of({"t": mask}))
    assert mask.num_kept == sum(map(len, mask.keep))
    assert mask.removed == sum(map(len, mask.drop))
    assert mask.layers == shape_of({"t": mask})["t"].layers == len(mask.drop)


@given(tower_masks())
def test_keep_and_drop_are_complements(mask):
    for keep, drop in zip(mask.keep, mask.drop, strict=True):
        assert sorted(keep + drop) == list(range(mask.num_heads))
    assert TowerKeep(num_heads=mask.num_heads, keep=mask.drop).drop == mask.keep


@given(tower_masks())
def test_dropping_what_a_mask_drops_gives_the_mask(mask):
    model = {"only": mask}

    assert drop_heads(full_mask(shape_of(model)), dropped_heads(model)) == model


def test_a_full_mask_keeps_every_head_of_every_tower():
    mask = full_mask(SHAPE)

    assert shape_of(mask) == SHAPE
    assert dropped_heads(mask) == ()
    assert sum(part.num_kept for part in mask.values()) == total_heads(SHAPE) == len(all_heads(SHAPE)) == 16


def test_heads_are_listed_in_the_order_of_towers():
    heads = all_heads(SHAPE)

    assert heads[:2] == (HeadId("vision", 0, 0), HeadId("vision", 0, 1))
    assert heads[-1] == HeadId("text", 1, 1)
    assert dropped_heads(drop_heads(full_mask(SHAPE), reversed(heads))) == heads


def test_dropping_leaves_the_given_mask_alone():
    mask = full_mask(SHAPE)

    drop_heads(mask, [HeadId("text", 0, 1)])

    assert mask == full_mask(SHAPE)


def test_masks_are_frozen_and_hashable():
    mask = TowerKeep(num_heads=2, keep=((0,),))

    with pytest.raises(ValidationError, match="frozen"):
        mask.num_heads = 3
    assert hash(mask) == hash(TowerKeep(num_heads=2, keep=((0,),)))


@pytest.mark.parametrize(
    ("num_heads", "keep", "message"),
    [
        (4, ((0,), (1, 4)), r"keep\[1\] has head 4, but there are 4 heads \(0\.\.3\)"),
        (4, ((-1,),), r"keep\.0\.0\s+Input should be greater than or equal to 0"),
        (4, ((0, 1), (2, 1)), r"keep\[1\] must be strictly increasing, got \[2, 1\]"),
        (4, ((3, 3),), r"keep\[0\] must be strictly increasing, got \[3, 3\]"),
        (0, ((),), r"num_heads\s+Input should be greater than or equal to 1"),
        (4, (), "keep\\s+Tuple should have at least 1 item"),
    ],
)
def test_refuses_masks_that_cannot_be(num_heads, keep, message):
    with pytest.raises(ValueError, match=message):
        TowerKeep(num_heads=num_heads, keep=keep)


def test_messages_name_a_head_in_full():
    assert str(HeadId("vision", 2, 7)) == "head 7 in layer 2 of tower `vision`"


VIT = {"vision": TowerShape(12, 12)}
CLIP = {"vision": TowerShape(12, 12), "text": TowerShape(12, 8)}


@st.composite
def score_tables(draw) -> dict[str, list[list[float]]]:
    """Importance of heads of 1 or 2 towers, on a coarse scale with ties."""
    table = {}
    for tower in draw(st.sampled_from([["vision"], ["vision", "text"]])):
        layers, num_heads = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        row = st.lists(st.integers(0, 3).map(float), min_size=num_heads, max_size=num_heads)
        table[tower] = draw(st.lists(row, min_size=layers, max_size=layers))
    return table


@pytest.mark.parametrize(
    ("budget", "shape", "removed"),
    [
        (HeadBudget(keep_per_layer=8), VIT, 48),
        (HeadBudget(keep_per_layer=10), VIT, 24),
        (HeadBudget(keep_per_layer=6), VIT, 72),
        (HeadBudget(keep_per_layer=0), VIT, 144),
        (HeadBudget(keep_per_layer=9), CLIP, 24),
        (HeadBudget(keep_per_layer=10), CLIP, 0),
        (HeadBudget(keep_per_layer=8, per_layer=True), CLIP, 48),
        (HeadBudget(remove=24), CLIP, 24),
        (HeadBudget(remove=0), VIT, 0),
        (HeadBudget(remove=144), VIT, 144),
        (HeadBudget(keep_fraction=1.0), VIT, 0),
        (HeadBudget(keep_fraction=0.5), VIT, 72),
        (HeadBudget(keep_fraction=0.9), {"t": TowerShape(1, 5)}, 1),
        (HeadBudget(keep_fraction=0.1), {"t": TowerShape(1, 5)}, 5),
        (HeadBudget(keep_fraction=0.91), {"t": TowerShape(1, 5)}, 0),
    ],
)
def test_budgets_of_the_paper_and_the_edges(budget, shape, removed):
    assert budget.removals(shape) == removed


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 1000))
def test_a_fraction_is_met_to_half_a_head(layers, num_heads, thousandths):
    total = layers * num_heads

    removed = HeadBudget(keep_fraction=thousandths / 1000).removals({"t": TowerShape(layers, num_heads)})

    assert -500 < 1000 * removed - total * (1000 - thousandths) <= 500


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 12)), min_size=1, max_size=2), st.integers(1, 1000)
)
def test_layers_that_keep_equally_many_are_as_near_the_budget_as_that_goes(sizes, thousandths):
    shape = {str(i): TowerShape(*size) for i, size in enumerate(sizes)}
    layers, budget = sum(layers for layers, _ in sizes), HeadBudget(keep_fraction=thousandths / 1000)
    stay = sum(layers * heads for layers, heads in sizes) - budget.removals(shape)

    keep = budget.mean_kept_per_layer(shape)

    assert 2 * abs(keep * layers - stay) <= layers
    assert keep % 2 == 0 or 2 * abs(keep * layers - stay) < layers  # halves are rounded to the even number


@pytest.mark.parametrize(
    ("remove", "kept"), [(0, 4), (1, 4), (2, 4), (3, 3), (5, 3), (6, 2), (10, 2), (11, 1), (14, 0), (16, 0)]
)
def test_removals_are_shared_among_layers_up_to_rounding(remove, kept):
    assert HeadBudget(remove=remove).mean_kept_per_layer({"t": TowerShape(4, 4)}) == kept


@given(st.integers(0, 8), st.integers(1, 5))
def test_what_a_layer_keeps_on_average_is_what_layers_alike_keep(keep, layers):
    budget, shape = HeadBudget(keep_per_layer=keep), {"t": TowerShape(layers, 8), "u": TowerShape(1, 8)}

    assert budget.mean_kept_per_layer(shape) == keep
    assert budget.removals(shape) == (8 - keep) * (layers + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of keep_per_layer, remove, keep_fraction, got none"),
        ({"remove": 1, "keep_fraction": 0.5}, "got .*remove.*keep_fraction"),
        ({"remove": 1, "per_layer": True}, "needs keep_per_layer, not remove"),
        ({"keep_per_layer": -1}, "at least 0, got -1"),
        ({"remove": -2}, "at least 0, got -2"),
        ({"keep_fraction": 0.0}, r"\(0, 1\], got 0.0"),
        ({"keep_fraction": 1.5}, r"\(0, 1\], got 1.5"),
        ({"keep_fraction": math.nan}, r"\(0, 1\], got nan"),
    ],
)
def test_refuses_budgets_that_mean_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        HeadBudget(**options)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (HeadBudget(remove=241), "cannot remove 241 heads: the model has 240"),
        (
            HeadBudget(keep_per_layer=11),
            "cannot keep 11 heads per layer on average: 24 layers have 240 heads, not 264",
        ),
        (
            HeadBudget(keep_per_layer=10, per_layer=True),
            "cannot keep 10 heads per layer: layers of tower `text` have 8",
        ),
    ],
)
def test_refuses_budgets_the_model_cannot_meet(budget, message):
    with pytest.raises(ValueError, match=message):
        budget.removals(CLIP)


@given(score_tables())
def test_the_order_names_every_head_once_by_rising_score(scores):
    order = removal_order(scores)
    values = [scores[tower][layer][head] for tower, layer, head in order]

    assert sorted(order) == sorted(all_heads(shape_of_importance(scores)))
    assert values == sorted(values)


@given(score_tables())
def test_ties_go_by_tower_then_layer_then_head(scores):
    flat = {tower: [[0.0] * len(row) for row in rows] for tower, rows in scores.items()}

    assert removal_order(flat) == all_heads(shape_of_importance(scores))


@given(score_tables(), st.data())
def test_a_recorded_order_is_taken_as_it_is(scores, data):
    heads = data.draw(st.permutations(all_heads(shape_of_importance(scores))))
    recorded = heads[: len(heads) // 2]

    assert removal_order(scores, recorded) == tuple(recorded)


@given(score_tables())
def test_a_larger_budget_removes_more_of_the_same(scores):
    order, shape = removal_order(scores), shape_of_importance(scores)
    removed = [set(dropped_heads(best_mask(order, shape, removals=count))) for count in range(len(order) + 1)]

    assert [len(heads) for heads in removed] == list(range(len(order) + 1))
    assert all(fewer < more for fewer, more in pairwise(removed))


@given(score_tables())
def test_the_ends_are_everything_and_nothing(scores):
    order, shape = removal_order(scores), shape_of_importance(scores)

    assert best_mask(order, shape, removals=0) == full_mask(shape)
    assert all(part.num_kept == 0 for part in best_mask(order, shape, removals=len(order)).values())


@given(score_tables(), st.integers(0, 5))
def test_per_layer_keeps_the_best_of_each_layer(scores, keep):
    shape = shape_of_importance(scores)
    keep = min(keep, *(size.num_heads for size in shape.values()), 5)

    mask = best_mask_per_layer(removal_order(scores), shape, keep=keep)

    assert shape_of(mask) == shape
    for tower, part in mask.items():
        for row, kept, gone in zip(scores[tower], part.keep, part.drop, strict=True):
            assert len(kept) == keep
            assert max((row[head] for head in gone), default=0) <= min(
                (row[head] for head in kept), default=3
            )


def test_per_layer_ties_keep_the_higher_head():
    scores = {"t": [[1.0, 1.0, 1.0]]}

    mask = best_mask_per_layer(removal_order(scores), shape_of_importance(scores), keep=1)

    assert mask["t"].keep == ((2,),)


def test_per_layer_refuses_an_order_that_stops_early():
    order = [HeadId("t", 0, 0), HeadId("t", 0, 1), HeadId("t", 1, 0)]

    with pytest.raises(ValueError, match=r"layer 1 of tower `t` must lose 2 heads to keep 1, but .* has 1"):
        best_mask_per_layer(order, {"t": TowerShape(2, 3)}, keep=1)


@pytest.mark.parametrize(
    ("budget", "typed"),
    [
        (HeadBudget(keep_per_layer=0), "--keep-heads 0"),
        (HeadBudget(remove=0), "--remove 0"),
        (HeadBudget(keep_fraction=2 / 3), "--keep-fraction 0.666667"),
    ],
)
def test_a_budget_says_how_it_is_typed(budget, typed):
    assert budget.option_text == typed
