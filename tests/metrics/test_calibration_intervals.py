"""Intervals of calibration errors contain the measured error and cover the truth; differences are paired."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.metrics.classification import of_equal_count, of_equal_width
from hydractl.metrics.per_sample import certainty_ranks
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling

ERRORS = [METRICS["ece"], METRICS["adaptive_ece"]]
TRIALS, SAMPLES = 200, 400


def drawn(generator, *, short=0.0, count=SAMPLES):
    """Return confidences, uniform in [1/2, 1], and hits.

    The probability of a hit is confidence - short * (2 confidence - 1). All gaps have the same sign, so every
    binning's error is the mean gap, `short / 2`.
    """
    confidence = 0.5 + 0.5 * torch.rand(count, generator=generator, dtype=torch.float64)
    chance = confidence - short * (2 * confidence - 1)
    hits = torch.rand(count, generator=generator, dtype=torch.float64) < chance
    return {"confidence": confidence, "hits": hits}


@pytest.mark.spread(cases=1)
@pytest.mark.parametrize("short", [0.0, 0.3])
def test_intervals_cover(short):
    """95 % intervals cover the truth within four standard deviations of the trials, and are narrow."""
    generator = torch.Generator().manual_seed(5)
    covered, told = dict.fromkeys(("ece", "adaptive_ece"), 0), 0
    for trial in range(TRIALS):
        found = Resampling(seed=trial).values(ERRORS, drawn(generator, short=short))
        for name, value in found.items():
            own = value.to_value()
            covered[name] += own.low <= short / 2 <= own.high
            told += own.low > 0
            assert own.low <= own.value <= own.high
            assert own.high - own.low < 0.25

    for each in covered.values():
        assert 0.89 * TRIALS <= each <= 0.995 * TRIALS
    assert told / (2 * TRIALS) >= 0.99 if short else told / (2 * TRIALS) <= 0.08


def test_percentile_intervals_do_not_hold_the_error_of_a_calibrated_model():
    """Percentile intervals can exclude the measured error of a calibrated model."""
    generator, missed = torch.Generator().manual_seed(5), 0
    for trial in range(20):
        sample = drawn(generator)
        (index,) = (torch.cat(each) for each in zip(*Resampling(seed=trial).draws(SAMPLES), strict=True))
        again = METRICS["adaptive_ece"].of({name: each[index] for name, each in sample.items()})
        found = METRICS["adaptive_ece"].of(sample)
        missed += not torch.quantile(again, 0.025) <= found
        assert torch.quantile(again, 0.025) > 0

    assert missed >= 2


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from([1, 2, 25]))
def test_every_interval_holds_its_number(seed, count, resamples):
    generator = torch.Generator().manual_seed(seed)
    sample = drawn(generator, short=float(torch.rand(1, generator=generator)), count=count)
    sample |= {
        "nll": torch.rand(count, generator=generator).double().exp(),
        "error": sample["confidence"].square(),
        "certainty_rank": certainty_ranks(-sample["confidence"], sample["hits"]),
    }
    labelled = [m for m in METRICS.values() if set(m.arguments) & sample.keys()]
    others = Resampling(resamples=resamples, seed=seed).values(
        labelled, drawn(generator, count=count) | sample
    )

    for name, value in Resampling(resamples=resamples).values(labelled, sample).items():
        for found in (value.to_value(), value.difference(others[name]).to_value()):
            assert found.low <= found.value <= found.high


@pytest.mark.parametrize("count", [1, 7, 15, 40])
def test_bins_are_those_that_the_errors_add_up(count):
    sample = drawn(torch.Generator().manual_seed(count), short=0.5, count=count)
    gap = sample["hits"].double() - sample["confidence"]

    for metric, bins in zip(ERRORS, (of_equal_width, of_equal_count), strict=True):
        sums = gap.new_zeros(16).scatter_add_(0, bins(sample["confidence"]), gap)
        assert metric.of(sample) == pytest.approx(float(sums.abs().sum()) / count, abs=1e-12)


def test_a_difference_is_that_of_pairs():
    """Two models with errors on the same samples: the paired interval is narrower than an unpaired interval."""
    accuracy = METRICS["accuracy"]
    first = {"hits": torch.arange(1000) % 4 > 0}
    second = {"hits": (torch.arange(1000) % 4 > 0) | (torch.arange(1000) % 100 == 0)}
    one, other = (Resampling(seed=3).values([accuracy], rows)["accuracy"] for rows in (second, first))

    found = one.difference(other).to_value()

    error = math.sqrt(0.01 * 0.99 / 1000)
    assert found.value == pytest.approx(0.01)
    assert found.low == pytest.approx(0.01 - 1.96 * error, abs=0.5 * error)
    assert found.high == pytest.approx(0.01 + 1.96 * error, abs=0.5 * error)
    assert other.difference(one).to_value().value == -found.value


def test_a_difference_of_calibration_errors_covers():
    """A calibrated model against a model with error 0.3: the measured error of the former is biased upwards."""
    generator, covered, told = torch.Generator().manual_seed(8), 0, 0
    for trial in range(60):
        rows = [drawn(generator, short=short) for short in (0.0, 0.6)]
        one, other = (Resampling(seed=trial).values(ERRORS[:1], row)["ece"] for row in rows)
        found = one.difference(other).to_value()
        covered += found.low <= -0.3 <= found.high
        told += found.high < 0

    assert covered >= 54
    assert told >= 54


def test_without_resamples_there_is_no_difference():
    accuracy = METRICS["accuracy"]
    found = Resampling(resamples=0).values([accuracy], {"hits": torch.ones(3)})["accuracy"]

    assert found.difference(found) is None
