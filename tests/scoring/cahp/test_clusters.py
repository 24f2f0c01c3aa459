from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import pairwise_distances

from hydractl.scoring.cahp import (
    Clustering,
    depends_on_rounding,
    find_knee,
    group_points,
    mean_simplified_silhouette,
    silhouettes,
)

DOUBLE = torch.float64


def scattered(count, seed, width=2):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def apart(points):
    return torch.from_numpy(pairwise_distances(points.numpy()))


def loss(distances, medoids):
    return distances[:, list(medoids)].min(dim=1).values.sum().item()


@pytest.mark.parametrize("k", range(1, 7))
def test_no_choice_of_medoids_among_six_points_is_better(k):
    """Several starts are necessary: from one start, no swap of a single medoid may help."""
    for seed in range(10):
        distances = apart(scattered(6, seed))

        found = min(loss(distances, group_points(distances, k, seed=s).medoids) for s in range(20))

        best = min(loss(distances, medoids) for medoids in combinations(range(6), k))
        assert found == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_no_swap_of_a_medoid_is_better(k):
    for seed in range(5):
        distances = apart(scattered(20, seed))

        found = group_points(distances, k, seed=seed).medoids

        for medoid in found:
            for other in set(range(20)) - set(found):
                swapped = [other if m == medoid else m for m in found]
                assert loss(distances, swapped) >= loss(distances, found) - 1e-12


@settings(max_examples=30)
@given(count=st.integers(2, 15), k=st.integers(1, 15), seed=st.integers(0, 99))
def test_every_point_is_in_the_group_of_its_nearest_medoid(count, k, seed):
    k = min(k, count)
    distances = apart(scattered(count, seed))

    found = group_points(distances, k, seed=seed)

    assert list(found.medoids) == sorted(set(found.medoids))
    assert len(found.medoids) == k
    assert torch.equal(found.group, distances[:, list(found.medoids)].argmin(dim=1))
    assert sorted(i for members in found.members() for i in members) == list(range(count))
    again = group_points(distances, k, seed=seed)
    assert again.medoids == found.medoids
    assert torch.equal(again.group, found.group)


@pytest.mark.parametrize("seed", range(4))
def test_rounding_changes_no_group(seed):
    """Most of the 100 groups have two points, and either may be the medoid."""
    distances = apart(scattered(144, seed))
    noise = torch.rand(distances.shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).triu()

    found = group_points(distances, 100, seed=seed)
    again = group_points(distances * (1 + 1e-12 * (noise + noise.T)), 100, seed=seed)

    assert again.medoids == found.medoids
    assert torch.equal(again.group, found.group)


def test_groups_that_hang_on_rounding_are_known():
    """Three distant families do not depend on rounding. Two groups of equidistant points do."""
    families = apart(scattered(30, 0) + 100 * torch.arange(3).repeat_interleave(10)[:, None])
    assert not depends_on_rounding(families, group_points(families, 3, seed=0), seed=0)
    alike = 1 - torch.eye(30, dtype=DOUBLE)
    assert depends_on_rounding(alike, group_points(alike, 2, seed=0), seed=0)


def test_points_on_one_spot_leave_no_group_empty():
    distances = torch.zeros(5, 5, dtype=DOUBLE)

    assert all(group_points(distances, 3, seed=0).members())


def test_mss_is_written_out_by_the_mean_of_the_other_medoids():
    points = scattered(9, 0)
    grouped = group_points(apart(points), 3, seed=0)

    found = mean_simplified_silhouette(apart(points), grouped)

    to_medoids = pairwise_distances(points.numpy(), points.numpy()[list(grouped.medoids)])
    values = []
    for i, own in enumerate(grouped.group.tolist()):
        if i in grouped.medoids:
            continue
        a, b = to_medoids[i, own], np.mean(np.delete(to_medoids[i], own))
        values.append((b - a) / max(a, b))
    assert len(values) == 6
    assert found == pytest.approx(np.mean(values), abs=1e-12)


def test_mss_of_two_groups_is_the_simplified_silhouette():
    """With a single other medoid, the mean equals the minimum."""
    points = torch.tensor([[0.0], [1.0], [10.0], [12.0]], dtype=DOUBLE)

    found = mean_simplified_silhouette(apart(points), Clustering((0, 2), torch.tensor([0, 0, 1, 1])))

    assert found == pytest.approx(((9 - 1) / 9 + (12 - 2) / 12) / 2)


def test_mss_is_one_where_all_points_are_medoids_or_on_them():
    points = torch.tensor([[0.0], [0.0], [5.0]], dtype=DOUBLE)

    assert mean_simplified_silhouette(apart(points), Clustering((0, 2), torch.tensor([0, 0, 1]))) == 1.0


@given(scale=st.floats(0.01, 100), seed=st.integers(0, 20))
@settings(max_examples=20)
def test_mss_lies_in_its_range_and_does_not_depend_on_scale(scale, seed):
    points = scattered(8, seed)
    grouped = group_points(apart(points), 3, seed=0)

    found = mean_simplified_silhouette(apart(points), grouped)

    assert -1 <= found <= 1
    assert mean_simplified_silhouette(apart(points * scale), grouped) == pytest.approx(found)


def test_after_an_mss_of_one_the_rest_is_one():
    points = torch.tensor([[0.0], [0.0], [5.0], [5.0], [9.0], [9.0], [9.0]], dtype=DOUBLE)

    groups, curve = silhouettes(apart(points), seed=0, track=lambda ks: ks)

    assert len(curve) == 5
    assert curve[1:] == [1.0] * 4
    assert len(groups) == 2


def bend(count, at):
    return [min(k, at) / at + 0.01 * k / count for k in range(2, 2 + count)]


@pytest.mark.parametrize("at", [8, 12])
def test_the_knee_of_a_curve_that_bends(at):
    knee = find_knee(bend(40, at), degree=6)

    assert knee.source == "kneed"
    assert abs(knee.k - at) <= 2
    assert knee.degree == 6


def test_the_knee_of_satopaas_own_example():
    """y = -1/x + 5 has its knee at 0.22 of its range (Kneedle, figure 2): here x runs from 2 to 20."""
    curve = [5 - 1 / (0.1 + 0.1 * i) for i in range(10)]

    assert find_knee(curve, degree=6) == (4, "kneed", 6)


@pytest.mark.parametrize("curve", [[0.5, 0.5, 0.5], [0.3], [0.2, 0.9], [1.0] * 8])
def test_a_curve_without_a_shape_has_no_knee(curve):
    assert find_knee(curve, degree=6) == (2, "chord", min(6, len(curve) - 1))


@pytest.mark.parametrize("at", [[4], [2, 6]])
def test_without_a_knee_the_first_of_the_highest_above_the_chord(at):
    curve = [0.1 * i + 0.01 * (i in at) for i in range(9)]

    assert find_knee(curve, degree=2) == (2 + at[0], "chord", 2)


def test_the_degree_is_lowered_to_what_the_points_allow():
    assert find_knee([0.1, 0.5, 0.6, 0.62], degree=15).degree == 3


@given(
    curve=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40),
    degree=st.integers(1, 15),
)
@settings(max_examples=200)
def test_any_curve_has_an_answer(curve, degree):
    found = find_knee(curve, degree=degree)

    assert 2 <= found.k < 2 + len(curve)
    assert found == find_knee(curve, degree=degree)
