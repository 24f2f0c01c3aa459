"""Masks: counts that add up, complements, and refusals that name layer and head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hydractl.heads.budget import total_heads
from hydractl.heads.masks import all_heads, check_order, drop_heads, dropped, full_mask, shape_of
from hydractl.manifest.heads import HeadId, TowerKeep, TowerShape

SHAPE = {"vision": TowerShape(3, 4), "text": TowerShape(2, 2)}


@st.composite
def tower_masks(draw) -> TowerKeep:
    num_heads = draw(st.integers(1, 6))
    layer = st.sets(st.integers(0, num_heads - 1)).map(lambda heads: tuple(sorted(heads)))
    return TowerKeep(num_heads=num_heads, keep=tuple(draw(st.lists(layer, min_size=1, max_size=5))))


@given(tower_masks())
def test_kept_and_removed_add_up(mask):
    assert mask.kept + mask.removed == total_heads({"t": mask}) == total_heads(shape_of({"t": mask}))
    assert mask.kept == sum(map(len, mask.keep))
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

    assert drop_heads(full_mask(shape_of(model)), dropped(model)) == model


def test_a_full_mask_keeps_every_head_of_every_tower():
    mask = full_mask(SHAPE)

    assert shape_of(mask) == SHAPE
    assert dropped(mask) == ()
    assert sum(part.kept for part in mask.values()) == total_heads(SHAPE) == len(all_heads(SHAPE)) == 16


def test_heads_are_listed_in_the_order_of_towers():
    heads = all_heads(SHAPE)

    assert heads[:2] == (HeadId("vision", 0, 0), HeadId("vision", 0, 1))
    assert heads[-1] == HeadId("text", 1, 1)
    assert dropped(drop_heads(full_mask(SHAPE), reversed(heads))) == heads


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


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([HeadId("audio", 0, 0)], "no tower `audio`, only `vision`, `text`"),
        ([HeadId("text", 2, 0)], "no head 0 in layer 2 of tower `text`: it has 2 layers of 2 heads"),
        ([HeadId("text", 0, -1)], "no head -1 in layer 0 of tower `text`"),
        ([HeadId("text", 0, 1)] * 2, "head 1 in layer 0 of tower `text` cannot be removed twice"),
    ],
)
def test_refuses_heads_that_cannot_go(heads, message):
    with pytest.raises(ValueError, match=message):
        check_order(heads, SHAPE)


def test_messages_name_a_head_in_full():
    assert str(HeadId("vision", 2, 7)) == "head 7 in layer 2 of tower `vision`"
