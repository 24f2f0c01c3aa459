"""Masks of members, sampled or from clusters: counts, pool, seeds, and equal heads before the trunk ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from hydractl.heads.masks import (
    Sampling,
    all_heads,
    best_mask,
    cluster_masks,
    random_masks,
    random_masks_per_layer,
    refill_empty_layers,
    representatives,
    sample_masks,
    shape_of,
    share_first_layers,
)
from hydractl.manifest.head_mask import HeadId, TowerKeep, TowerShape
from support.masks import agree_before, dropped_heads


@st.composite
def sampling_tasks(draw):
    """An order of all heads of 1 or 2 towers, a number of removals, and a possible sampling."""
    shape = {"vision": TowerShape(draw(st.integers(1, 4)), draw(st.integers(1, 4)))}
    if draw(st.booleans()):
        shape["text"] = TowerShape(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    order = draw(st.permutations(all_heads(shape)))
    pool = draw(st.integers(0, len(order)))
    removals = draw(st.integers(0, pool))
    start = draw(st.integers(0, 4))
    fixed = sum(head.layer < start for head in order[:removals])
    distinct = math.comb(sum(head.layer >= start for head in order[:pool]), removals - fixed)
    members = draw(st.integers(1, min(4, distinct)))
    seed = draw(st.integers(-5, 1000))
    return order, shape, removals, Sampling(pool=pool, members=members, seed=seed, diverge_from=start)


@given(sampling_tasks())
def test_every_member_removes_its_count_from_the_pool(task):
    order, shape, removals, sampling = task

    masks = sample_masks(order, shape, removals=removals, sampling=sampling)

    assert len(masks) == sampling.members
    for mask in masks:
        assert shape_of(mask) == shape
        assert len(dropped_heads(mask)) == removals
        assert set(dropped_heads(mask)) <= set(order[: sampling.pool])


@given(sampling_tasks())
def test_members_are_all_different(task):
    order, shape, removals, sampling = task

    masks = sample_masks(order, shape, removals=removals, sampling=sampling)

    assert len({dropped_heads(mask) for mask in masks}) == sampling.members


@given(sampling_tasks())
def test_members_agree_with_the_best_mask_before_they_diverge(task):
    order, shape, removals, sampling = task
    best = best_mask(order, shape, removals=removals)

    masks = sample_masks(order, shape, removals=removals, sampling=sampling)

    assert agree_before([best, *masks], sampling.diverge_from)


@given(sampling_tasks())
def test_the_draw_depends_on_the_pool_as_a_set(task):
    order, shape, removals, sampling = task
    assume(sampling.diverge_from == 0)
    reordered = order[: sampling.pool][::-1] + order[sampling.pool :]
    swapped = dict(reversed(shape.items()))

    first = sample_masks(order, shape, removals=removals, sampling=sampling)

    assert first == sample_masks(order, shape, removals=removals, sampling=sampling)
    assert first == sample_masks(reordered, swapped, removals=removals, sampling=sampling)


def test_every_subset_is_drawn_when_all_are_needed():
    shape = {"t": TowerShape(2, 2)}
    sampling = Sampling(pool=4, members=6, seed=0)

    masks = sample_masks(all_heads(shape), shape, removals=2, sampling=sampling)

    assert len({dropped_heads(mask) for mask in masks}) == math.comb(4, 2)


def test_another_seed_draws_other_masks():
    shape = {"t": TowerShape(12, 12)}
    order = all_heads(shape)

    def draw(seed: int) -> tuple:
        return sample_masks(order, shape, removals=48, sampling=Sampling(pool=100, members=3, seed=seed))

    assert len({dropped_heads(mask) for seed in range(5) for mask in draw(seed)}) == 15


def test_more_members_leave_the_first_ones_alone():
    shape = {"t": TowerShape(12, 12)}

    def draw(members: int) -> tuple:
        return sample_masks(
            all_heads(shape), shape, removals=48, sampling=Sampling(pool=100, members=members, seed=0)
        )

    assert draw(5)[:3] == draw(3)


def test_a_draw_is_the_same_for_ever():
    shape = {"t": TowerShape(2, 4)}

    masks = sample_masks(all_heads(shape), shape, removals=4, sampling=Sampling(pool=6, members=3, seed=0))

    assert [mask["t"].drop for mask in masks] == [((0, 2), (0, 1)), ((0, 2, 3), (1,)), ((1, 2), (0, 1))]


def test_heads_are_drawn_evenly():
    shape = {"t": TowerShape(1, 5)}
    counts = dict.fromkeys(range(5), 0)

    for seed in range(400):
        (mask,) = sample_masks(
            all_heads(shape), shape, removals=2, sampling=Sampling(pool=5, members=1, seed=seed)
        )
        for head in dropped_heads(mask):
            counts[head.head] += 1

    # Each head is removed in 2 of 5 draws: 160 of 400, with a standard deviation of 10.
    assert all(abs(count - 160) < 40 for count in counts.values())


@pytest.mark.parametrize(
    ("removals", "sampling", "message"),
    [
        (
            4,
            Sampling(pool=4, members=2, seed=0),
            "removing 4 of the 4 pool heads gives 1",
        ),
        (
            4,
            Sampling(pool=5, members=3, seed=0, diverge_from=1),
            (
                "3 different masks are required, but removing 0 of the 1 pool heads in layers from 1 on, "
                "beside those before, gives 1"
            ),
        ),
    ],
)
def test_refuses_draws_that_do_not_exist(removals, sampling, message):
    shape = {"t": TowerShape(2, 4)}

    with pytest.raises(ValueError, match=message):
        sample_masks(all_heads(shape), shape, removals=removals, sampling=sampling)


def one_tower(*keep: tuple[int, ...]) -> dict[str, TowerKeep]:
    return {"t": TowerKeep(num_heads=2, keep=keep)}


def test_sharing_replaces_the_early_layers_alone():
    first, second = one_tower((0,), (1,), ()), one_tower((1,), (0, 1), (0,))

    assert share_first_layers([first, second], 2) == (first, one_tower((0,), (1,), (0,)))
    assert share_first_layers([first, second], 0) == (first, second)
    assert share_first_layers([first, second], 9) == (first, first)


@given(sampling_tasks(), st.integers(0, 4))
def test_shared_masks_agree(task, layer):
    order, shape, removals, sampling = task
    masks = sample_masks(order, shape, removals=removals, sampling=sampling)

    shared = share_first_layers(masks, layer)

    assert agree_before(shared, layer)
    assert share_first_layers(shared, layer) == shared


@st.composite
def shapes(draw):
    shape = {"vision": TowerShape(draw(st.integers(1, 4)), draw(st.integers(1, 4)))}
    if draw(st.booleans()):
        shape["text"] = TowerShape(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return shape


@given(shapes(), st.data())
def test_random_masks_remove_their_count_differ_and_agree_where_they_must(shape, data):
    removals = data.draw(st.integers(0, len(all_heads(shape))))
    members, start = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))
    options = {"removals": removals, "sampling": Sampling(members=members, seed=3, diverge_from=start)}

    try:
        masks = random_masks(shape, **options)
    except ValueError:
        reject()

    assert masks == random_masks(shape, **options)
    assert all(len(dropped_heads(mask)) == removals and shape_of(mask) == shape for mask in masks)
    assert len({dropped_heads(mask) for mask in masks}) == members
    assert agree_before(masks, start)


@given(shapes(), st.data())
def test_random_masks_by_layer_keep_their_count_in_each(shape, data):
    keep = data.draw(st.integers(0, min(size.num_heads for size in shape.values())))
    members, start = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))
    options = {"keep": keep, "sampling": Sampling(members=members, seed=3, diverge_from=start)}

    try:
        masks = random_masks_per_layer(shape, **options)
    except ValueError:
        reject()

    assert masks == random_masks_per_layer(shape, **options)
    assert all(len(heads) == keep for mask in masks for part in mask.values() for heads in part.keep)
    assert len({dropped_heads(mask) for mask in masks}) == members
    assert agree_before(masks, start)


def test_random_masks_are_drawn_as_evenly_as_random_scores_would():
    shape = {"t": TowerShape(2, 3)}
    counts = dict.fromkeys(all_heads(shape), 0)

    for seed in range(400):
        (mask,) = random_masks(shape, removals=2, sampling=Sampling(members=1, seed=seed))
        for head in dropped_heads(mask):
            counts[head] += 1

    # Each head is removed in 2 of 6 draws: 133 of 400, with a standard deviation of 9.4.
    assert all(abs(count - 400 / 3) < 38 for count in counts.values())


def test_random_trunks_are_drawn_too():
    shape = {"t": TowerShape(2, 4)}

    trunks = {
        random_masks(shape, removals=4, sampling=Sampling(members=2, seed=seed, diverge_from=1))[0]["t"].keep[
            0
        ]
        for seed in range(20)
    }

    assert len(trunks) > 5


def test_refuses_more_heads_than_there_are():
    shape = {"t": TowerShape(1, 2)}

    with pytest.raises(ValueError, match="removing 3 of the 2 pool heads gives 0"):
        random_masks(shape, removals=3, sampling=Sampling(members=1, seed=0))
    with pytest.raises(ValueError, match="keeping 3 heads of each layer from 0 on gives 0"):
        random_masks_per_layer(shape, keep=3, sampling=Sampling(members=1, seed=0))


def test_as_many_masks_as_there_are_may_be_drawn():
    shape = {"t": TowerShape(1, 3)}
    masks = random_masks_per_layer(shape, keep=1, sampling=Sampling(members=3, seed=0))
    assert {mask["t"].keep for mask in masks} == {((0,),), ((1,),), ((2,),)}
    with pytest.raises(ValueError, match="gives 3"):
        random_masks_per_layer(shape, keep=1, sampling=Sampling(members=4, seed=0))


@st.composite
def clustered(draw):
    """A partition of all heads of 1 or 2 towers, each cluster in any order, and distinct importance."""
    shape = {"vision": TowerShape(draw(st.integers(1, 4)), draw(st.integers(1, 4)))}
    if draw(st.booleans()):
        shape["text"] = TowerShape(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    heads = draw(st.permutations(all_heads(shape)))
    cuts = sorted(draw(st.sets(st.integers(1, len(heads) - 1), max_size=5))) if len(heads) > 1 else []
    clusters = [heads[a:b] for a, b in zip([0, *cuts], [*cuts, len(heads)], strict=True)]
    values = iter(draw(st.permutations(range(len(heads)))))
    scores = {
        name: [[float(next(values)) for _ in range(s.num_heads)] for _ in range(s.layers)]
        for name, s in shape.items()
    }
    return clusters, scores, shape


def kept(mask):
    return {
        HeadId(tower, layer, head)
        for tower, part in mask.items()
        for layer, heads in enumerate(part.keep)
        for head in heads
    }


@given(clustered(), st.integers(0, 6))
def test_before_the_guard_a_member_keeps_one_head_of_each_cluster(task, member):
    clusters, _, shape = task

    found = kept(representatives(clusters, member, shape))

    assert len(found) == len(clusters)
    for cluster in clusters:
        assert found & set(cluster) == {cluster[member] if member < len(cluster) else cluster[0]}


@given(clustered())
def test_member_0_keeps_the_best_and_the_guard_only_adds_to_empty_layers(task):
    clusters, scores, shape = task

    (mask,) = cluster_masks(clusters, scores, members=1)

    before = representatives(clusters, 0, shape)
    assert kept(mask) >= {cluster[0] for cluster in clusters}
    for tower, part in mask.items():
        for layer, heads in enumerate(part.keep):
            row = scores[tower][layer]
            assert heads == (before[tower].keep[layer] or (row.index(max(row)),))


@given(clustered(), st.integers(1, 4), st.integers(0, 4))
def test_members_differ_or_are_refused_and_agree_where_they_must(task, members, start):
    clusters, scores, _ = task

    try:
        masks = cluster_masks(clusters, scores, members=members, diverge_from=start)
    except ValueError:
        reject()

    assert len({frozenset(kept(mask)) for mask in masks}) == members
    assert all(part for mask in masks for tower in mask.values() for part in tower.keep)
    assert agree_before(masks, start)


@given(clustered())
def test_as_many_members_as_the_largest_cluster_has_heads_are_all_different_without_the_guard(task):
    clusters, _, shape = task

    masks = [representatives(clusters, m, shape) for m in range(max(map(len, clusters)))]

    assert len({frozenset(kept(mask)) for mask in masks}) == len(masks)


def test_equal_scores_give_an_empty_layer_its_lowest_head_back():
    mask = {"t": TowerKeep(num_heads=3, keep=((), (2,)))}

    assert refill_empty_layers(mask, {"t": [[0.5, 0.5, 0.1], [1, 1, 1]]})["t"].keep == ((0,), (2,))


@pytest.mark.parametrize(
    ("clusters", "members", "message"),
    [
        (
            [[HeadId("t", 0, 0)]],
            2,
            "members 0 and 1 would keep the same heads: the largest of 1 clusters has 1 heads",
        ),
    ],
)
def test_refuses_clusters_that_give_no_members(clusters, members, message):
    with pytest.raises(ValueError, match=message):
        cluster_masks(clusters, {"t": [[0.1, 0.2]]}, members=members)
