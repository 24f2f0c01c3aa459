"""Members out of clusters: one head of each, complementary, and no layer empty."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from hydractl.heads.clusters import cluster_masks, keep_every_layer, representatives
from hydractl.heads.masks import all_heads
from hydractl.manifest.heads import HeadId, TowerKeep, TowerShape
from support.masks import agree_before


@st.composite
def clustered(draw):
    """A partition of all heads of one or two towers, each cluster in some order, and distinct scores."""
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

    assert keep_every_layer(mask, {"t": [[0.5, 0.5, 0.1], [1, 1, 1]]})["t"].keep == ((0,), (2,))


@pytest.mark.parametrize(
    ("clusters", "members", "message"),
    [
        (
            [[HeadId("t", 0, 0)]],
            2,
            "members 0 and 1 would keep the same heads: the largest of 1 clusters has 1 heads",
        ),
        ([[HeadId("t", 0, 0)], []], 1, "a cluster has no head"),
        ([[HeadId("t", 0, 5)]], 1, "there is no head 5"),
        ([[HeadId("t", 0, 0)], [HeadId("t", 0, 0)]], 1, "cannot be removed twice"),
    ],
)
def test_refuses_clusters_that_give_no_members(clusters, members, message):
    with pytest.raises(ValueError, match=message):
        cluster_masks(clusters, {"t": [[0.1, 0.2]]}, members=members)
