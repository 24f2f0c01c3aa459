"""Bootstrap intervals: seeds, order, coverage, and equality of each resample with the metric."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.classification import LABELLED
from hydractl.metrics.compute import measure
from hydractl.metrics.diversity import disagreement
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.per_sample import Responses, answers, places
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling, measured

MEAN = Metric(
    name="mean",
    needs=MetricNeeds.LABELS,
    definition="A mean.",
    arguments=("x",),
    compute=lambda x: x.mean(-1),
    interval=True,
)


def mean_of(values, **options):
    return Resampling(**options).values([MEAN], {"x": values})["mean"].to_value()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(0, 1000), st.integers(1, 30))
def test_equal_seeds_give_equal_intervals(seed, n):
    values = torch.randn(n, generator=seeded(seed), dtype=torch.float64)

    first = mean_of(values, resamples=20, seed=seed)

    assert first == mean_of(values, resamples=20, seed=seed)
    assert values.min() - 1e-6 <= first.low <= first.high <= values.max() + 1e-6


def test_other_seeds_give_other_intervals():
    values = torch.randn(50, generator=seeded(), dtype=torch.float64)
    one, other = (mean_of(values, seed=seed) for seed in (1, 2))

    assert (one.low, one.high) != (other.low, other.high)


def test_interval_of_a_share_is_about_two_standard_errors():
    found = mean_of((torch.arange(1000) % 5 == 0).double())

    error = math.sqrt(0.2 * 0.8 / 1000)
    assert found.low == pytest.approx(0.2 - 1.96 * error, abs=0.4 * error)
    assert found.high == pytest.approx(0.2 + 1.96 * error, abs=0.4 * error)


def test_a_constant_has_no_width():
    found = mean_of(torch.full((5,), 0.25))

    assert (found.value, found.low, found.high, found.count) == (0.25, 0.25, 0.25, 5)


def test_bounds_are_interpolated_quantiles():
    found = measured(3.0, torch.arange(41.0, dtype=torch.float64), count=1).to_value()

    assert (found.low, found.high) == (1.0, 39.0)


@pytest.mark.parametrize("at_once", [1, 30, 10**9])
def test_indices_are_drawn_with_replacement_in_range(at_once, monkeypatch):
    monkeypatch.setattr("hydractl.metrics.resampling.DRAWN_AT_ONCE", at_once)

    ids, oods = (torch.cat(drawn) for drawn in zip(*Resampling(resamples=50).draws(8, 5), strict=True))

    assert (ids.shape, oods.shape) == ((50, 8), (50, 5))
    assert ids.dtype == torch.int64
    assert (ids.min(), ids.max(), oods.min(), oods.max()) == (0, 7, 0, 4)
    assert any(len({*row}) < 8 for row in ids.tolist())
    further = int(np.random.SeedSequence((0, 0, 1)).generate_state(1)[0])
    generator, other = seeded(), torch.Generator().manual_seed(further)
    for first, second in zip(ids, oods, strict=True):
        assert torch.equal(first, torch.randint(8, (8,), generator=generator))
        assert torch.equal(second, torch.randint(5, (5,), generator=other))


def test_the_id_set_is_resampled_alike_beside_every_ood_set():
    """Means over OOD sets need equal ID resamples; OOD sets of equal size have different resamples."""
    (ids, oods), (again, others) = (
        next(Resampling(resamples=9).draws(8, 5, name=name)) for name in ("near", "far")
    )

    assert torch.equal(ids, again)
    assert not torch.equal(oods, others)


def test_refuses_a_statistic_that_is_not_a_number():
    with pytest.raises(ValueError, match="is nan on resample 1"):
        measured(0.0, torch.tensor([1.0, math.nan]), count=3)


def test_without_resamples_there_is_no_interval():
    value = mean_of(torch.zeros(10), resamples=0)

    assert (value.low, value.high, value.count) == (None, None, 10)


def test_a_metric_without_an_interval_has_none():
    plain = replace(MEAN, interval=False)

    value = Resampling().values([plain], {"x": torch.zeros(10)})["mean"].to_value()

    assert (value.low, value.high, value.count) == (None, None, 10)


def test_every_resample_of_labelled_data_is_the_metric_of_its_samples():
    generator = seeded(3)
    log_probs = (3 * torch.randn(80, 5, generator=generator, dtype=torch.float64)).log_softmax(1)
    labels = torch.randint(5, (80,), generator=generator)
    resampling = Resampling(resamples=40, seed=7)

    found = resampling.values(LABELLED, answers(log_probs.exp(), labels, log_probs=log_probs))

    (indices,) = (torch.cat(drawn) for drawn in zip(*resampling.draws(80), strict=True))
    for metric in [m for m in LABELLED if m.bins is None]:
        each = [metric.of(answers(log_probs[i].exp(), labels[i], log_probs=log_probs[i])) for i in indices]
        value = found[metric.name].to_value()
        expected = measured(value.value, torch.stack(each), count=80).to_value()
        assert (value.low, value.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_single_ood_sample_has_an_interval():
    sets = ({side: own} for side, own in places(torch.zeros(3), torch.ones(1)).items())

    value = Resampling(resamples=10).values([METRICS["auroc"]], *sets)["auroc"].to_value()

    assert (value.value, value.low, value.high, value.count) == (1.0, 1.0, 1.0, 4)


# --- coverage: a 95 % interval holds the true value in about 95 % of data sets ------------------------------------------

TRIALS = 300


def check_coverage(covered, trials=TRIALS):
    """Check the coverage within four binomial deviations, and one point less for percentile intervals."""
    error = 4 * math.sqrt(0.95 * 0.05 / trials)
    assert 0.95 - error - 0.01 <= covered / trials <= 0.95 + error


def measured_on(metrics, confidence, hits, others=None, *, seed):
    """Return the metrics of a model with probabilities (N,) of its first class, on ID data and on OOD data."""
    log_probs = torch.stack([confidence, 1 - confidence], 1).log()[None]
    ood = {} if others is None else {"x": torch.stack([others, 1 - others], 1).log()[None]}
    resampling = Resampling(seed=seed)
    foreign = {name: Responses(found) for name, found in ood.items()}
    return measure(
        Responses(log_probs),
        (~hits).long(),
        foreign,
        metrics=metrics,
        scores=("msp",),
        resampling=resampling,
    )


@pytest.mark.more
def test_intervals_of_labelled_metrics_cover():
    """Intervals for calibrated confidences, uniform in [1/2, 1], cover expectations computed by integration.

    test_calibration_intervals.py has the calibration errors.
    """
    truth = {"accuracy": 3 / 4, "brier": 1 / 3, "nll": 1 / 2}
    generator, covered = seeded(), dict.fromkeys(truth, 0)
    for trial in range(TRIALS):
        confidence = 0.5 + 0.5 * torch.rand(120, generator=generator, dtype=torch.float64)
        hits = torch.rand(120, generator=generator, dtype=torch.float64) < confidence
        found = measured_on(tuple(truth), confidence, hits, seed=trial).values
        for name, value in truth.items():
            covered[name] += found[name].low <= value <= found[name].high

    for name in truth:
        check_coverage(covered[name])


@pytest.mark.more
@pytest.mark.spread(cases=1)
@pytest.mark.parametrize(("inside", "outside"), [(400, 40), (40, 400)])
def test_intervals_of_auroc_cover(inside, outside):
    """Nearly all uncertainty is from the smaller set, so both sets must be resampled."""
    truth = 0.5 * (1 + math.erf(1 / 2))  # AUROC of normal scores with unit variance and means 1 apart
    generator, covered = seeded(), 0
    for trial in range(TRIALS):
        own, others = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (inside, outside))
        confidence, strange = (0.5 + 0.5 * torch.sigmoid(-x) for x in (own, others + 1))
        value = measured_on(("auroc",), confidence, confidence > 0, strange, seed=trial).ood["x"]["auroc"]
        covered += value.low <= truth <= value.high

    check_coverage(covered)


@pytest.mark.more
def test_resamples_of_a_diversity_metric_cover():
    """Intervals of a diversity metric would cover, although reports leave these intervals out."""
    trials, share = 100, 0.3
    generator, covered = seeded(), 0
    for trial in range(trials):
        votes = (torch.rand(3, 80, generator=generator) < share).long()
        probs = torch.nn.functional.one_hot(votes, 2).double()
        resamples = [
            disagreement(probs[:, index])
            for (indices,) in Resampling(resamples=100, seed=trial).draws(80)
            for index in indices
        ]
        value = measured(
            disagreement(probs), torch.tensor(resamples, dtype=torch.float64), count=80
        ).to_value()
        covered += value.low <= 2 * share * (1 - share) <= value.high

    check_coverage(covered, trials)
