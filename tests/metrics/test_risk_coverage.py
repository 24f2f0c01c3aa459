"""Risk-coverage metrics equal the published definitions, for any order of equal scores.

torch-uncertainty 0.8 requires torch < 2.9, so this module writes its formulas again. torch-uncertainty sorts samples
by confidence, so the order of equal confidences changes results. Without ties:

- `AURC` is the trapezoid area of the error rates at coverages 1/N to 1, divided by 1 - 1/N. The first and the last
  error rate have half the weight, so the result differs from the mean over k (Geifman et al. 2019).
- `AUGRC` is the same area for the generalized risk. The area between coverages 0 and 1/N is missing, contrary to
  Traub et al. (2024).
- `RiskAt80Cov` agrees.
- `CovAt5Risk` agrees or is NaN. The result is NaN without a coverage of this risk, and in other cases, because
  the code reads a position from the end in a list from the start.

MAPIE 1.6 has no area. `abstention_rate` and risks of accepted answers agree with the points of the curve.
"""

from __future__ import annotations

import math
from itertools import pairwise, permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.risk_control import BinaryRisk, abstention_rate
from sklearn.metrics import auc, roc_auc_score

from hydractl.manifest.report import MOST_POINTS
from hydractl.metrics.classification import (
    COVERAGE,
    RISK,
    RISK_COVERAGE,
    augrc,
    aurc,
    coverage_at_risk,
    risk_at_coverage,
)
from hydractl.metrics.compute import Measurement, answer_scores, measure, measure_all, rank_answers
from hydractl.metrics.curves import curves_of, risk_coverage
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import Responses, certainty_ranks
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.tasks import TOKENS

NAMES = tuple(metric.name for metric in RISK_COVERAGE)
ANSWERS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40)


def arguments(answers):
    """Return ranks and hits of (score, hit) pairs."""
    scores = torch.tensor([score for score, _ in answers], dtype=torch.float64)
    hits = torch.tensor([hit for _, hit in answers])
    return certainty_ranks(scores, hits), hits


def measured(answers):
    ranks, hits = arguments(answers)
    sample = {"certainty_rank": ranks, "hits": hits}
    return {name: float(METRICS[name].of(sample)) for name in NAMES}


def error_rates(hits):
    """Return the error rate among the k first answers, for k = 1 to N."""
    wrong = [not hit for hit in hits]
    return [sum(wrong[:k]) / k for k in range(1, len(wrong) + 1)]


def mean_error_rate(hits):
    return sum(error_rates(hits)) / len(hits)


def generalized_area(hits):
    """Return the trapezoid area under the share of answers that are accepted and wrong, from coverage 0 to 1."""
    n = len(hits)
    risks = [0.0, *(rate * k / n for k, rate in enumerate(error_rates(hits), 1))]
    return sum((a + b) / 2 / n for a, b in pairwise(risks))


def thresholds(answers):
    """Yield coverage and error rate of each threshold, the lowest first."""
    for bound in sorted({score for score, _ in answers}):
        accepted = [hit for score, hit in answers if score <= bound]
        yield len(accepted) / len(answers), accepted.count(False) / len(accepted)


@given(ANSWERS)
@settings(max_examples=200, deadline=None)
def test_points_are_thresholds_that_accept_equal_scores_together(answers):
    found = measured(answers)
    points = [*thresholds(answers)]

    need = math.ceil(COVERAGE * len(answers)) / len(answers)
    assert found["risk80"] == next(risk for coverage, risk in points if coverage >= need)
    assert found["coverage5"] == max([0.0, *(coverage for coverage, risk in points if risk <= RISK)])
    assert found["coverage5"] >= need or found["risk80"] > RISK


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_areas_are_means_over_all_orders_of_equal_scores(answers):
    """A stable sort keeps the order of the permutation among equal scores."""
    orders = [
        [hit for _, hit in sorted(order, key=lambda answer: answer[0])] for order in permutations(answers)
    ]
    found = measured(answers)

    assert found["aurc"] == pytest.approx(np.mean([mean_error_rate(hits) for hits in orders]), abs=1e-12)
    assert found["augrc"] == pytest.approx(np.mean([generalized_area(hits) for hits in orders]), abs=1e-12)


@given(ANSWERS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_neither_the_order_of_answers_nor_a_monotone_change_of_scores_matters(answers, random):
    shuffled = random.sample(answers, len(answers))

    assert measured(shuffled) == measured(answers)
    assert measured([(score**3 - 7, hit) for score, hit in shuffled]) == measured(answers)


@given(ANSWERS)
@settings(max_examples=200, deadline=None)
def test_augrc_follows_from_accuracy_and_the_auroc_of_errors(answers):
    """Traub et al. (2024): (1 - AUROC) acc (1 - acc) + (1 - acc)^2 / 2, and the area over distinct thresholds."""
    found, wrong = measured(answers)["augrc"], [not hit for _, hit in answers]
    error = sum(wrong) / len(wrong)
    points = [(0.0, 0.0), *((coverage, coverage * risk) for coverage, risk in thresholds(answers))]

    assert found == pytest.approx(auc(*zip(*points, strict=True)), abs=1e-12)
    if 0 < error < 1:
        separated = roc_auc_score(wrong, [score for score, _ in answers])
        assert found == pytest.approx((1 - separated) * error * (1 - error) + error**2 / 2, abs=1e-12)


@pytest.mark.parametrize("n", [2, 7, 50, 333])
@pytest.mark.parametrize("accuracy", [0.3, 0.9])
def test_the_relation_to_torch_uncertainty(n, accuracy):
    random = np.random.default_rng(n)
    answers = [*zip(random.permutation(n).tolist(), (random.random(n) < accuracy).tolist(), strict=True)]
    found, hits = measured(answers), [hit for _, hit in sorted(answers)]
    rates = np.array(error_rates(hits))
    coverage = np.arange(1, n + 1) / n
    theirs = {
        name: float(np.trapezoid(risks, coverage)) / (1 - 1 / n)
        for name, risks in (("aurc", rates), ("augrc", rates * coverage))
    }

    assert n * found["aurc"] == pytest.approx(theirs["aurc"] * (n - 1) + (rates[0] + rates[-1]) / 2)
    assert found["augrc"] == pytest.approx(theirs["augrc"] * (1 - 1 / n) + rates[0] / (2 * n**2))
    assert found["risk80"] == rates[math.ceil(n * 0.8) - 1]
    assert found["coverage5"] == max(coverage[rates <= 0.05], default=0.0)


def test_examples_of_torch_uncertainty():
    """Documented results: AURC 0.0833, coverage 0.8 at risk 0.3, risk 0.25 at coverage 0.5.

    A correct and a wrong answer have equal confidence. The documented order gives risk 0.25, the reverse order 0.5. The
    threshold accepts both answers: 2 of 5 are wrong.
    """
    ranks, hits = arguments([(-0.7, True), (-0.6, False), (-0.8, True)])
    assert (3 * float(aurc(ranks, hits)) - (0 + 1 / 3) / 2) / 2 == pytest.approx(0.0833, abs=1e-4)

    confidences = (0.9, True), (0.6, False), (0.8, True), (0.5, False), (0.7, True)
    assert float(coverage_at_risk(*arguments([(-c, hit) for c, hit in confidences]), risk=0.3)) == 0.8

    confidences = (
        *((0.9, True), (0.7, False), (0.95, True), (0.8, False)),
        *((0.6, True), (0.7, True), (0.85, False), (0.8, True)),
    )
    assert float(risk_at_coverage(*arguments([(-c, hit) for c, hit in confidences]), coverage=0.5)) == 2 / 5


def test_points_are_those_of_mapie():
    """MAPIE marks rejected answers by NaN, and returns 1 - accuracy as the risk of an accuracy."""
    random = np.random.default_rng(0)
    scores, hits = random.integers(0, 30, 200), random.random(200) < 0.9
    labels = random.integers(0, 4, 200)
    predicted = np.where(hits, labels, (labels + 1) % 4)
    accuracy_of_accepted = BinaryRisk(
        risk_occurrence=lambda y_true, y_pred: y_pred == y_true,
        risk_condition=lambda _, y_pred: ~np.isnan(y_pred),
        higher_is_better=True,
    )
    curve = risk_coverage(torch.tensor(scores), torch.tensor(hits))
    for bound, coverage, risk in zip(np.unique(scores), curve.x, curve.y, strict=True):
        answers = np.where(scores <= bound, predicted, np.nan)
        assert abstention_rate.get_value_and_effective_sample_size(labels, answers)[0] == pytest.approx(
            1 - coverage, abs=1e-12
        )
        assert accuracy_of_accepted.get_value_and_effective_sample_size(labels, answers)[0] == pytest.approx(
            risk, abs=1e-12
        )


@pytest.mark.parametrize("n", [1, 2, 25])
@pytest.mark.parametrize("tied", [False, True])
def test_all_correct_and_all_wrong_are_the_ends_of_the_ranges(n, tied):
    scores = [0] * n if tied else [*range(n)]

    assert measured([(score, True) for score in scores]) == dict(zip(NAMES, (0, 0, 0, 1), strict=True))
    assert measured([(score, False) for score in scores]) == pytest.approx(
        dict(zip(NAMES, (1, 0.5, 1, 0), strict=True)), abs=1e-12
    )


def test_without_an_order_the_area_is_the_error_rate():
    found = measured([(0, True)] * 6 + [(0, False)] * 2)

    assert found == pytest.approx(dict(zip(NAMES, (0.25, 0.125, 0.25, 0), strict=True)))


@pytest.mark.parametrize(("n", "wrong"), [(20, 1), (60, 3), (1000, 50)])
def test_a_risk_of_exactly_5_percent_is_allowed(n, wrong):
    assert measured([(score, score < n - wrong) for score in range(n)])["coverage5"] == 1
    assert measured([(score, score < n - wrong) for score in range(n + 1)])["coverage5"] == n / (n + 1)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_refused(score):
    scores = torch.tensor([0.5, score])

    with pytest.raises(ValueError, match="OOD scores of answers must be finite"):
        certainty_ranks(scores, torch.tensor([True, False]))
    assert certainty_ranks(scores, torch.tensor([1.0, math.nan])).tolist() == [0, -1]


@pytest.mark.parametrize("levels", [3, 10_000])
def test_the_curve_and_the_metrics_agree(levels):
    """The curve of a report has at most 101 points of the full curve."""
    random = np.random.default_rng(levels)
    scores = torch.tensor(random.integers(0, levels, 2000))
    hits = torch.tensor(random.random(2000) < 0.9)
    found = measured([*zip(scores.tolist(), hits.tolist(), strict=True)])
    curve, points = (
        risk_coverage(scores, hits),
        {*thresholds([*zip(scores.tolist(), hits.tolist(), strict=True)])},
    )

    assert len(curve.x) <= MOST_POINTS
    assert {*zip(curve.x, curve.y, strict=True)} <= points
    if levels == 3:
        accepted = [coverage for coverage, risk in zip(curve.x, curve.y, strict=True) if risk <= RISK]
        assert found["coverage5"] == max([0.0, *accepted])
        assert found["risk80"] == next(y for x, y in zip(curve.x, curve.y, strict=True) if x >= COVERAGE)
    else:
        assert found["aurc"] == pytest.approx(np.trapezoid((curve.y[0], *curve.y), (0, *curve.x)), abs=2e-3)


@pytest.mark.parametrize("accepted", [1, 777, 1999, 2000])
def test_the_point_of_a_threshold_is_kept(accepted):
    random = np.random.default_rng(0)
    scores, hits = torch.tensor(random.permutation(2000)), torch.tensor(random.random(2000) < 0.9)
    curve = risk_coverage(scores, hits, accepted=accepted)

    assert len(curve.x) <= MOST_POINTS
    risk = float((~hits[scores < accepted]).double().mean())
    assert (accepted / 2000, risk) in {*zip(curve.x, curve.y, strict=True)}


def drawn(samples=60, *shape, members=2, classes=3, seed=0):
    """Return predictions of members and labels, both for samples with the given number of words."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples, *shape), generator=generator)
    logits = torch.randn(members, samples, *shape, classes, generator=generator, dtype=torch.float64)
    logits += torch.nn.functional.one_hot(labels, classes)
    return responses(logits), labels


def responses(logits):
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1))


def options(*scores, resamples=0):
    return {"metrics": NAMES, "scores": scores, "resampling": Resampling(resamples=resamples)}


def test_each_score_has_its_own_numbers_and_the_first_has_no_suffix():
    predictions, labels = drawn()
    hits = predictions.log_probs.exp().mean(0).argmax(-1) == labels
    found = measure(predictions, labels, {}, **options("energy", "msp", "mi")).id_set

    assert [*found] == [*NAMES, *(f"{name}@msp" for name in NAMES), *(f"{name}@mi" for name in NAMES)]
    for score, suffix in (("energy", ""), ("msp", "@msp"), ("mi", "@mi")):
        scores = SCORES[score].of(predictions.logits())
        expected = measured([*zip(scores.tolist(), hits.tolist(), strict=True)])
        assert {name: found[f"{name}{suffix}"].value for name in NAMES} == pytest.approx(expected)
    assert len({found[f"aurc{suffix}"].value for suffix in ("", "@msp", "@mi")}) == 3
    curve = curves_of(
        predictions, {"confidence": -SCORES["msp"].of(predictions.logits()), "hits": hits}, {}, "energy"
    ).risk
    assert curve == risk_coverage(SCORES["energy"].of(predictions.logits()), hits)


def test_stored_scores_rank_samples_and_shared_answers():
    predictions, labels = drawn(8, 3)
    stored = torch.arange(8.0, dtype=torch.float64)
    with_scores = predictions._replace(scores={"knn": stored})

    assert answer_scores(with_scores, "knn").tolist() == stored.repeat_interleave(3).tolist()
    found = measure(with_scores, labels, {}, **options("knn")).id_set
    hits = (predictions.log_probs.exp().mean(0).argmax(-1) == labels).flatten().tolist()
    expected = measured([*zip(answer_scores(with_scores, "knn").tolist(), hits, strict=True)])
    assert {name: value.value for name, value in found.items()} == pytest.approx(expected)


def test_intervals_are_those_of_the_same_resamples_and_differences_are_paired():
    predictions, labels = drawn(40)
    other, _ = drawn(40, seed=1)
    rows = [measure(each, labels, {}, **options("msp", resamples=50)) for each in (predictions, other)]
    (indices,) = (torch.cat(parts) for parts in zip(*Resampling(resamples=50).draws(40), strict=True))
    scores = SCORES["msp"].of(predictions.logits())
    hits = predictions.log_probs.exp().mean(0).argmax(-1) == labels
    for name in NAMES:
        expected = [
            measured([*zip(scores[index].tolist(), hits[index].tolist(), strict=True)])[name]
            for index in indices
        ]
        assert rows[0].id_set[name].low.tolist() == pytest.approx(expected, abs=1e-12)
        gap = rows[0].difference(rows[1]).values[name]
        lows = rows[0].id_set[name].low - rows[1].id_set[name].low
        assert (gap.low, gap.high) == pytest.approx(
            (
                min(float(torch.quantile(lows.double(), 0.025)), gap.value),
                max(float(torch.quantile(lows.double(), 0.975)), gap.value),
            )
        )


def ragged(names=3, rows=20, longest=6):
    """Return predictions and labels of texts with 1 to `longest` words, padded."""
    predictions, labels = drawn(rows, longest, classes=names)
    lengths = torch.randint(1, longest + 1, (rows,), generator=torch.Generator().manual_seed(2))
    absent = torch.arange(longest) >= lengths[:, None]
    padded = Responses(
        predictions.log_probs.masked_fill(absent[..., None], math.nan),
        predictions.logsumexp.masked_fill(absent, math.nan),
    )
    return padded, labels.masked_fill(absent, -100)


@pytest.mark.parametrize("score", ["msp", "energy"])
def test_words_count_as_answers_and_resamples_draw_texts(score):
    predictions, labels = ragged()
    counted = labels >= 0
    alone = Responses(predictions.log_probs[:, counted], predictions.logsumexp[:, counted])
    found = measure(predictions, labels, {}, **options(score, resamples=30)).id_set
    expected = measure(alone, labels[counted], {}, **options(score)).id_set

    assert {n: x.value for n, x in found.items()} == pytest.approx({n: x.value for n, x in expected.items()})
    scores = SCORES[score].of(predictions.logits())
    hits = predictions.log_probs.exp().mean(0).argmax(-1) == labels
    (indices,) = (
        torch.cat(parts) for parts in zip(*Resampling(resamples=30).draws(20, labels=6), strict=True)
    )
    for name in NAMES:
        resampled = [
            measured([*zip(scores[i][counted[i]].tolist(), hits[i][counted[i]].tolist(), strict=True)])[name]
            for i in indices
        ]
        assert found[name].low.tolist() == pytest.approx(resampled, abs=1e-12)


def measured_spans(predictions, labels, *scores, resamples=0):
    header = SimpleNamespace(
        architecture=SimpleNamespace(task=TOKENS), class_names=("O", "I-a", "I-b"), entity_temperature=1.0
    )
    selection = Measurement(tuple(f"span_{name}" for name in NAMES), scores, Resampling(resamples=resamples))
    return measure_all(predictions, labels, {}, header, selection).id_set


def runs(tags):
    """Return (first, last, tag) of each run of equal tags above 0. Tags `I-a` and `I-b` have one entity per run."""
    edges = [i for i in range(len(tags) + 1) if i in (0, len(tags)) or tags[i] != tags[i - 1]]
    return [(first, end - 1, tags[first]) for first, end in pairwise(edges) if tags[first] > 0]


def test_entities_count_as_answers_with_the_highest_score_of_the_words():
    predictions, labels = ragged(rows=40)
    found = measured_spans(predictions, labels, "msp", "energy", resamples=30)
    tags = predictions.log_probs.exp().mean(0).argmax(-1)
    for score, suffix in (("msp", ""), ("energy", "@energy")):
        scores, answers = SCORES[score].of(predictions.logits()), []
        for by_word, predicted, true in zip(scores, tags, labels, strict=True):
            words = int((true >= 0).sum())
            correct = runs(true[:words].tolist())
            answers += [
                (float(by_word[first : last + 1].max()), (first, last, tag) in correct)
                for first, last, tag in runs(predicted[:words].tolist())
            ]
        expected = measured(answers)
        for name in NAMES:
            estimate = found[f"span_{name}{suffix}"]
            assert estimate.value == pytest.approx(expected[name])
            assert estimate.low is not None


def test_texts_without_entities():
    """Texts without predicted entities have no numbers. If a resample has no entity, numbers have no interval."""
    predictions, labels = ragged(rows=3)
    logits = predictions.logits()
    logits[..., 0] += 50.0
    assert measured_spans(responses(logits), labels, "msp") == {}

    logits[:, 0, 0, 1] += 100.0
    found = measured_spans(responses(logits), labels, "msp", resamples=60)
    assert {name: x.low for name, x in found.items()} == {f"span_{name}": None for name in NAMES}
    assert all(math.isfinite(x.value) for x in found.values())


def test_padding_beyond_the_longest_text_changes_nothing():
    scores, hits = torch.tensor([0.3, 0.1, 0.2, 0.1]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    padded = (
        torch.tensor([0.3, 0.1, math.nan, 0.2, 0.1, math.nan]),
        torch.tensor([1.0, 0.0, math.nan, 1.0, 1.0, math.nan]),
    )
    one, other = (
        rank_answers({"msp": scores_of}, hits_of, RISK_COVERAGE, Resampling(resamples=20), answers=width)
        for (scores_of, hits_of), width in (((scores, hits), 2), (padded, 3))
    )
    for name in NAMES:
        assert one[name].value == other[name].value
        assert one[name].low.tolist() == other[name].low.tolist()


def test_several_candidates_are_measured_at_a_time():
    ranks, hits = arguments([(0, True), (1, False), (1, True), (2, False)])
    stacked = torch.stack([ranks, ranks.flip(0)]), torch.stack([hits, hits.flip(0)])
    for metric in (aurc, augrc, risk_at_coverage, coverage_at_risk):
        assert metric(*stacked).tolist() == [float(metric(ranks, hits))] * 2
