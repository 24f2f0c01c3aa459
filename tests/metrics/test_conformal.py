"""Prediction sets: coverage over many splits and all orders; MAPIE; and a reference written from the papers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mapie.conformity_scores.sets.aps import APSConformityScore
from mapie.conformity_scores.sets.lac import LACConformityScore
from mapie.conformity_scores.sets.raps import RAPSConformityScore
from scipy.stats import betabinom, binom, binomtest

from hydractl.manifest.document import Fingerprint
from hydractl.manifest.guarantees import PredictionSets
from hydractl.manifest.terms import SetMethod
from hydractl.metrics.conformal import (
    ROUNDING,
    binomial_interval,
    class_sets,
    fewest_samples,
    fit_thresholds,
    nonconformity,
    quantile,
    quantile_rank,
)

LAC, APS, RAPS = SetMethod
OPTIONS = {LAC: {}, APS: {}, RAPS: {"penalty": 0.05, "rank": 2}}
DATA = Fingerprint(reference="held-out", sha256=f"sha256:{'0' * 64}")


def samples(count, classes=6, *, seed=0, sharpness=2.0):
    """Return probabilities of an overconfident model, and labels; classes have different frequencies."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator) + 0.3 * torch.arange(classes)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (sharpness * logits).softmax(1).double(), labels


def true_scores(probs, labels, method):
    return nonconformity(probs, method, **OPTIONS[method]).gather(1, labels[:, None]).squeeze(1)


def fitted(probs, labels, method, coverage, *, by_class=False):
    thresholds = fit_thresholds(
        true_scores(probs, labels, method),
        labels,
        method,
        coverage,
        classes=probs.shape[1] if by_class else None,
    )
    return PredictionSets(
        method=method,
        coverage=coverage,
        thresholds=thresholds,
        count=len(labels),
        data=DATA,
        **OPTIONS[method],
    )


def covered(probs, labels, rule):
    return class_sets(probs, rule).gather(1, labels[:, None]).squeeze(1)


def reference_scores(probs, method, penalty=0.0, rank=0):
    """Compute the scores by loops: equation 3 of RAPS with u = 0, with the paper's names rho and o."""
    scores = torch.zeros_like(probs)
    for i, row in enumerate(probs.tolist()):
        for y, p in enumerate(row):
            rho = math.fsum(other for other in row if other > p)
            o = sum(other >= p for other in row)
            scores[i, y] = {
                LAC: 1 - p,
                APS: rho,
                RAPS: rho + penalty * max(o - rank, 0),
            }[method]
    return scores


@pytest.mark.parametrize("method", SetMethod)
def test_scores_are_those_of_the_papers(method):
    probs, _ = samples(200)
    probs[:40] = (probs[:40] * 8).round().clamp(min=1)  # ties
    probs /= probs.sum(1, keepdim=True)
    expected = reference_scores(probs, method, **OPTIONS[method])
    torch.testing.assert_close(nonconformity(probs, method, **OPTIONS[method]), expected, rtol=0, atol=1e-12)


class Always(np.random.RandomState):
    """Random generator whose uniform numbers are all 1, so MAPIE's sets are not randomized."""

    def uniform(self, *_, size):
        return np.ones(size)


MAPIES = {LAC: LACConformityScore, APS: APSConformityScore, RAPS: RAPSConformityScore}


@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("method", SetMethod)
def test_quantiles_and_sets_are_those_of_mapie(method, coverage):
    """MAPIE without random numbers, with the same rank and penalty of RAPS, is the reference."""
    (probs, labels), (new, _) = samples(500, seed=1), samples(400, seed=2)
    mapie, alpha = MAPIES[method](), np.array([1 - coverage])
    mapie.classes, mapie.random_state = np.arange(6), Always(0)
    y, p = labels.numpy(), probs.numpy()
    if method is RAPS:  # MAPIE selects rank and penalty of RAPS on other data; the test sets both
        scores = APSConformityScore.get_conformity_scores(mapie, y, p, y_enc=y)
        rank, penalty = np.array([OPTIONS[RAPS]["rank"]]), OPTIONS[RAPS]["penalty"]
        scores = mapie._regularize_conformity_score(rank, penalty, scores, mapie.cutoff)
        mapie.k_star, mapie.lambda_star = rank, penalty
        mapie.quantiles_ = APSConformityScore.get_conformity_score_quantiles(
            mapie, scores, alpha, cv="prefit"
        )
    else:
        scores = mapie.get_conformity_scores(y, p, y_enc=y)
        mapie.quantiles_ = mapie.get_conformity_score_quantiles(scores, alpha, cv="prefit")
    mine = true_scores(probs, labels, method)
    np.testing.assert_allclose(scores.ravel(), mine.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(mapie.quantiles_.item(), quantile(mine, coverage), rtol=0, atol=1e-6)
    rule = fitted(probs, labels, method, coverage)
    assert 0 <= rule.thresholds[0] - quantile(mine, coverage) <= ROUNDING + 1e-12
    theirs = mapie.get_prediction_sets(
        new.numpy()[:, :, None], scores, alpha, cv="prefit", include_last_label=True
    )[:, :, 0]
    sets = class_sets(new, rule).numpy()
    # MAPIE also adds the class whose penalty crosses the quantile, although its score is above the quantile
    if method is RAPS:
        assert not (sets & ~theirs).any()
        assert set((theirs.sum(1) - sets.sum(1)).tolist()) <= {0, 1}
    else:
        assert (sets == theirs).all()
    assert sets.sum(1).std() > 0 or method is not LAC


@pytest.mark.parametrize("method", SetMethod)
def test_coverage_over_a_thousand_splits_is_within_its_binomial_band(method):
    """The number of covered samples among m new ones is beta-binomial if all scores differ (Vovk 2012)."""
    probs, labels = samples(260, classes=4)
    scores = true_scores(probs, labels, method)
    n, m, coverage, splits = 60, 200, 0.85, 1000
    rank = quantile_rank(n, coverage)
    hits = []
    for seed in range(splits):
        order = torch.randperm(260, generator=torch.Generator().manual_seed(seed))
        threshold = fit_thresholds(scores[order[:n]], labels[order[:n]], method, coverage)[0]
        hits.append(int((scores[order[n:]] <= threshold).sum()))
    mean, deviation = np.mean(hits) / m, betabinom.std(m, rank, n + 1 - rank) / m / splits**0.5
    exact = rank / (n + 1)  # 0.852
    assert mean > exact - 4 * deviation
    if method is LAC:  # scores of LAC have no ties, so coverage has an upper bound too
        assert mean < exact + 4 * deviation
        low, high = betabinom.interval(0.9, m, rank, n + 1 - rank)
        outside = sum(not low <= count <= high for count in hits)
        assert binom.ppf(1e-4, splits, 0.05) <= outside <= binom.isf(1e-4, splits, 0.13)


@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=14),
    st.sampled_from([0.1, 1 / 3, 0.5, 0.7, 0.9]),
)
def test_of_each_sample_by_the_others_at_least_that_many_are_covered(integers, coverage):
    """Exchangeability with ties: each sample in turn is new; the others give the threshold."""
    scores = torch.tensor(integers, dtype=torch.float64)
    others = [torch.cat([scores[:new], scores[new + 1 :]]) for new in range(len(scores))]
    if len(scores) - 1 < fewest_samples(coverage):
        with pytest.raises(ValueError, match="needs"):
            quantile(others[0], coverage)
        return
    hits = sum(bool(score <= quantile(rest, coverage)) for score, rest in zip(scores, others, strict=True))
    assert hits / len(scores) >= coverage - 1e-12


def test_the_quantile_is_exact():
    """The coverage is used as a decimal number: 55 of 100 for 0.55. In binary, 100 * 0.55 exceeds 55."""
    assert quantile_rank(99, 0.55) == 55
    assert 100 * 0.55 > 55
    assert (quantile_rank(9, 0.9), quantile_rank(10, 0.9), quantile_rank(19, 0.95)) == (9, 10, 19)
    scores = torch.arange(1.0, 100.0)[torch.randperm(99)]
    assert quantile(scores, 0.55) == 55
    for coverage in (0.5, 0.7, 0.9, 0.95, 0.99, 0.999):
        n = fewest_samples(coverage)
        assert quantile_rank(n, coverage) <= n
        assert quantile_rank(n - 1, coverage) > n - 1
    assert (fewest_samples(0.9), fewest_samples(0.95), fewest_samples(0.99)) == (9, 19, 99)


def test_a_set_does_not_depend_on_the_order_of_samples_or_classes():
    probs, labels = samples(120)
    for method in SetMethod:
        rule = fitted(probs, labels, method, 0.8)
        order, classes = torch.randperm(120), torch.randperm(6)
        assert fitted(probs[order], labels[order], method, 0.8) == rule
        assert torch.equal(class_sets(probs[:, classes], rule), class_sets(probs, rule)[:, classes])


def test_each_class_is_covered_by_its_own_threshold():
    """A common threshold covers an underrated class too rarely."""
    probs, labels = samples(60_000, sharpness=4.0)
    probs[:, 0] *= 0.2  # class 0 is underrated
    probs /= probs.sum(1, keepdim=True)
    half = 30_000
    common = fitted(probs[:half], labels[:half], LAC, 0.9)
    rule = fitted(probs[:half], labels[:half], LAC, 0.9, by_class=True)
    new, truth = probs[half:], labels[half:]
    shares, common_shares = (
        [float(covered(new, truth, r)[truth == c].double().mean()) for c in range(6)] for r in (rule, common)
    )
    for c, share in enumerate(shares):
        count, fits = int((truth == c).sum()), int((labels[:half] == c).sum())
        deviation = (0.09 / count + 0.09 / fits) ** 0.5
        assert abs(share - 0.9) < 4 * deviation, (c, share)
    assert common_shares[0] < 0.8
    assert len(rule.thresholds) == 6


def test_empty_sets_and_sets_of_one():
    """Only LAC gives empty sets; APS and RAPS always include the most probable class."""
    probs, labels = samples(2000, sharpness=6.0)
    unsure = torch.full((1, 6), 0.1, dtype=torch.float64)
    unsure[0, 3] = 0.5
    for method in SetMethod:
        # labels are the predictions, so the model is always right
        rule = fitted(probs, probs.argmax(1), method, 0.5)
        sizes = class_sets(torch.cat([probs, unsure]), rule).sum(1)
        assert (int(sizes.min()) == 0) == (method is LAC)
        assert int(sizes[-1]) == (0 if method is LAC else 1)
    assert float((probs.argmax(1) == labels).double().mean()) < 0.9


def test_classes_of_equal_probability_are_in_a_set_together():
    probs = torch.tensor([[0.4, 0.2, 0.2, 0.2]], dtype=torch.float64)
    assert nonconformity(probs, APS)[0].tolist() == pytest.approx([0, 0.4, 0.4, 0.4])
    assert nonconformity(probs, RAPS, penalty=1.0, rank=1)[0].tolist() == pytest.approx([0, 3.4, 3.4, 3.4])
    for threshold, size in ((0.3, 1), (0.4, 4), (0.5, 4)):
        rule = PredictionSets(method=APS, coverage=0.5, thresholds=(threshold,), count=9, data=DATA)
        assert int(class_sets(probs, rule).sum()) == size


@pytest.mark.parametrize("method", SetMethod)
def test_rounding_does_not_drop_samples_with_the_probabilities_of_the_quantile(method):
    """Repeated inputs computed in another batch differ by rounding, and stay in the sets."""
    probs, labels = samples(50)
    probs, labels = probs.repeat(20, 1), labels.repeat(20)
    rule = fitted(probs, labels, method, 0.8)
    noise = 1 + 1e-7 * torch.randn(probs.shape, generator=torch.Generator().manual_seed(0)).double()
    again = (probs * noise).float()
    assert torch.equal(covered(again, labels, rule), covered(probs, labels, rule))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_that_of_scipy(counts):
    hits, count = counts
    expected = binomtest(hits, count).proportion_ci(0.95, method="exact")
    assert binomial_interval(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_bad_arguments():
    probs, labels = samples(8)
    with pytest.raises(ValueError, match=r"a coverage of 0\.9 needs 9 samples, got 8"):
        fitted(probs, labels, LAC, 0.9)
    with pytest.raises(ValueError, match="needs 1 samples, got 0"):
        fit_thresholds(torch.zeros(3), torch.zeros(3, dtype=torch.int64), LAC, 0.5, classes=2)
    with pytest.raises(ValueError, match="sum to 1"):
        nonconformity(probs * 2, LAC)
    with pytest.raises(ValueError, match="needs a penalty and a rank"):
        nonconformity(probs, RAPS)


def test_all_sets_of_the_exact_distribution_cover():
    """Sum over all draws of three held-out samples: the expected coverage is at least 0.6."""
    world = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)
    pairs = [(x, y, float(world[x, y]) / 3) for x in range(3) for y in range(3)]
    for method in SetMethod:
        scores = nonconformity(world, method, **OPTIONS[method])
        total = 0.0
        for drawn in itertools.product(pairs, repeat=3):
            held_out = torch.stack([scores[x, y] for x, y, _ in drawn])
            threshold = quantile(held_out, 0.6)
            share = sum(p for x, y, p in pairs if scores[x, y] <= threshold)
            total += share * math.prod(p for *_, p in drawn)
        assert total >= 0.6
