"""The knee of a curve of objectives: known knees, noise, and curves without a knee."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hydractl.heads.budget import KneeResult, concave_majorant, find_knee

VALUES = st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=1, max_size=40)


def bent(
    *, heads: int, rise: int, knee: int, noise: float = 0.0, seed: int = 0, flat: int = 0
) -> list[float]:
    """Rise by 0.05 until `rise`, stay until `knee`, fall by 0.4, and stay for the last `flat` removals."""
    draw = random.Random(seed)  # noqa: S311 - noise
    bottom = heads - flat
    levels = [
        0.9 + 0.05 * min(1, i / rise) - 0.4 * min(1, max(0, i - knee) / (bottom - knee))
        for i in range(heads + 1)
    ]
    return [level + draw.gauss(0, noise) for level in levels]


@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 48, "rise": 10, "knee": 30},
        {"heads": 48, "rise": 5, "knee": 24, "flat": 10},
        {"heads": 144, "rise": 20, "knee": 90, "flat": 20},
        {"heads": 144, "rise": 60, "knee": 60, "flat": 60},
    ],
)
def test_a_corner_is_the_knee_and_noise_moves_it_little(shape):
    assert find_knee(bent(**shape)).knee == shape["knee"]

    for seed in range(10):
        found = find_knee(bent(**shape, noise=0.002, seed=seed)).knee
        assert found is not None
        assert abs(found - shape["knee"]) <= 4


@pytest.mark.parametrize("power", [2, 4, 8])
def test_the_knee_of_a_power_is_where_its_slope_is_that_of_the_chord(power):
    curve = [1 - (i / 100) ** power for i in range(101)]

    assert find_knee(curve).knee == pytest.approx(100 * power ** (-1 / (power - 1)), abs=1)


@given(VALUES)
@example([1.0, 1.0, 0.0, -3.0])
def test_a_knee_is_at_or_after_the_best_and_never_worse_than_the_beginning(curve):
    fall = find_knee(curve)

    assert fall.best == max(i for i, value in enumerate(curve) if value == max(curve))
    assert fall.declines == (curve[-1] < curve[0])
    if fall.knee is not None:
        assert fall.declines
        assert fall.best <= fall.knee < len(curve) - 1
        assert curve[fall.knee] >= curve[0] or curve[fall.best] == curve[0]


@given(st.integers(0, 20), st.integers(0, 30))
def test_how_far_the_run_went_beyond_the_fall_does_not_matter(seed, more):
    curve = bent(heads=48, rise=10, knee=24, noise=0.003, seed=seed)
    begin = max(i for i, value in enumerate(curve) if value >= curve[0])
    draw = random.Random(seed)  # noqa: S311 - noise

    longer = curve[: begin + 2] + [curve[0] - draw.random() for _ in range(more)]

    assert find_knee(longer).knee == find_knee(curve[: begin + 2]).knee


@given(VALUES, st.floats(0.1, 10), st.floats(-5, 5))
def test_units_do_not_matter_to_the_majorant(values, scale, shift):
    moved = concave_majorant([scale * v + shift for v in values])

    assert moved == pytest.approx([scale * v + shift for v in concave_majorant(values)], abs=1e-9)


@given(VALUES)
def test_the_majorant_is_the_least_concave_one(values):
    found = concave_majorant(values)

    slopes = [b - a for a, b in pairwise(found)]
    assert len(found) == len(values)
    assert all(f >= v - 1e-12 for f, v in zip(found, values, strict=True))
    assert all(a >= b - 1e-9 for a, b in pairwise(slopes))
    corners = [i for i in range(1, len(values) - 1) if slopes[i - 1] > slopes[i] + 1e-9]
    assert all(found[i] == values[i] for i in (0, *corners, len(values) - 1))


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([0.9], KneeResult(best=0, declines=False, knee=None)),
        ([1.0, 0.5], KneeResult(best=0, declines=True, knee=None)),
        ([0.5, 0.5, 0.5], KneeResult(best=2, declines=False, knee=None)),
        ([0.5, 0.7, 0.9, 0.8], KneeResult(best=2, declines=False, knee=None)),
        ([1 - i / 20 for i in range(21)], KneeResult(best=0, declines=True, knee=None)),
        ([1 - math.sqrt(i / 20) for i in range(21)], KneeResult(best=0, declines=True, knee=None)),
    ],
    ids=["one", "two", "flat", "not-yet", "straight", "slows-down"],
)
def test_curves_without_a_knee(curve, expected):
    assert find_knee(curve) == expected
