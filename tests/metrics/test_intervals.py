"""Bootstrap: seeds, order, and the interval that theory gives for a mean."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.intervals import bootstrap


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 1000), st.integers(1, 30))
def test_equal_generators_give_equal_intervals(seed, n):
    values = torch.randn(n, generator=seeded(seed))

    def mean(index: torch.Tensor) -> float:
        return float(values[index].mean())

    first = bootstrap(n, mean, resamples=20, generator=seeded(seed))

    assert first == bootstrap(n, mean, resamples=20, generator=seeded(seed))
    assert values.min() - 1e-6 <= first[0] <= first[1] <= values.max() + 1e-6


def test_interval_of_a_share_is_about_two_standard_errors():
    hits = torch.arange(1000) % 5 == 0

    low, high = bootstrap(1000, lambda index: float(hits[index].double().mean()), generator=seeded())

    error = math.sqrt(0.2 * 0.8 / 1000)
    assert low == pytest.approx(0.2 - 1.96 * error, abs=0.4 * error)
    assert high == pytest.approx(0.2 + 1.96 * error, abs=0.4 * error)


def test_a_constant_has_no_width():
    assert bootstrap(5, lambda _: 0.25, generator=seeded()) == (0.25, 0.25)


def test_indices_are_drawn_with_replacement_in_range():
    seen = []

    def note(index: torch.Tensor) -> float:
        seen.append(index)
        return 0.0

    bootstrap(8, note, resamples=50, generator=seeded())

    drawn = torch.stack(seen)
    assert drawn.shape == (50, 8)
    assert drawn.dtype == torch.int64
    assert (drawn.min(), drawn.max()) == (0, 7)
    assert any(len(set(row.tolist())) < 8 for row in drawn)


@pytest.mark.parametrize(("n", "resamples"), [(0, 5), (5, 0)])
def test_refuses_nothing_to_resample(n, resamples):
    with pytest.raises(ValueError, match=f"got {n} and {resamples}"):
        bootstrap(n, lambda _: 0.0, resamples=resamples, generator=seeded())


def test_refuses_a_statistic_that_is_not_a_number():
    with pytest.raises(ValueError, match="resample 0 is nan"):
        bootstrap(3, lambda _: math.nan, generator=seeded())
