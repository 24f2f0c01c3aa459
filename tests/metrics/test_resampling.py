"""Fast resampled statistics are the metrics they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.calibration import adaptive_ece, ece
from hydractl.metrics.classification import accuracy, brier, nll
from hydractl.metrics.ood import aupr_out, auroc, fpr_at_tpr
from hydractl.metrics.resampling import Resampling, labelled_statistics, ranking_statistics

RANKED = {"auroc": auroc, "fpr95": fpr_at_tpr, "aupr": aupr_out}
NONE = torch.empty(0, dtype=torch.int64)


def log_probs(seed, count=80, classes=5):
    generator = torch.Generator().manual_seed(seed)
    found = (3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)).log_softmax(1)
    return found, torch.randint(classes, (count,), generator=generator)


def resample(seed, count):
    return torch.randint(count, (count,), generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 10_000), st.booleans())
def test_labelled_statistics_are_the_metrics_of_the_resample(seed, identity):
    found, labels = log_probs(seed)
    index = torch.arange(80) if identity else resample(seed + 1, 80)
    statistics = labelled_statistics(found, labels)
    probs, own = found[index].exp(), labels[index]

    expected = {
        "accuracy": accuracy(probs, own),
        "brier": brier(probs, own),
        "nll": nll(found[index], own),
        "ece": ece(probs, own),
        "adaptive_ece": adaptive_ece(probs, own),
    }

    assert {m: s(index, NONE) for m, s in statistics.items()} == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10_000), st.sampled_from([2, 10, None]), st.booleans())
def test_ranking_statistics_are_the_metrics_of_the_resample(seed, levels, identity):
    generator = torch.Generator().manual_seed(seed)
    inside = torch.randn(60, generator=generator, dtype=torch.float64)
    outside = torch.randn(41, generator=generator, dtype=torch.float64) + 0.5
    if levels is not None:  # many ties
        inside, outside = (torch.round(x * levels / 4) for x in (inside, outside))
    first, second = (
        (torch.arange(60), torch.arange(41)) if identity else (resample(seed + 1, 60), resample(seed + 2, 41))
    )
    statistics = ranking_statistics(inside, outside)

    expected = {m: metric(inside[first], outside[second]) for m, metric in RANKED.items()}

    assert {m: s(first, second) for m, s in statistics.items()} == pytest.approx(expected, abs=1e-12)


def test_an_interval_holds_the_true_value_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for trial in range(100):
        hits = (torch.rand(150, generator=generator) < 0.7).double()
        value = Resampling(seed=trial).value(float(hits.mean()), 150, lambda i, _, h=hits: float(h[i].mean()))
        covered += value.low <= 0.7 <= value.high

    assert 88 <= covered <= 100


def test_both_samples_are_drawn_from_the_seed_alone():
    inside, outside = torch.randn(50), torch.randn(30)
    statistic = ranking_statistics(inside, outside)["auroc"]

    first, again, other = (
        Resampling(seed=s, resamples=20).value(0.5, 50, statistic, others=30) for s in (1, 1, 2)
    )

    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.count == 80


def test_without_resamples_there_is_no_interval():
    value = Resampling(resamples=0).value(0.5, 10, lambda *_: 0.0)

    assert (value.low, value.high, value.count) == (None, None, 10)


def test_a_single_ood_sample_has_an_interval():
    value = Resampling(resamples=10).value(
        0.5, 3, ranking_statistics(torch.zeros(3), torch.ones(1))["auroc"], others=1
    )

    assert (value.low, value.high) == (1.0, 1.0)
