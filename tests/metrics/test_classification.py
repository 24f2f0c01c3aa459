"""Metrics of labelled data: scikit-learn, torchmetrics, hand values at bin edges, and invariants."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_calibration_error

from hydractl.metrics import classification
from hydractl.metrics.classification import LABELLED, RETRIEVAL, by_query
from hydractl.metrics.per_sample import answers


def of(metric, probs, labels, **options):
    """Return a metric of predictions, by the name of its function."""
    found = answers(probs, labels)
    return float(getattr(classification, metric)(found["confidence"], found["hits"], **options))


def ece(probs, labels, **options):
    return of("ece", probs, labels, **options)


def adaptive_ece(probs, labels, **options):
    return of("adaptive_ece", probs, labels, **options)


def every(probs, labels, log_probs=None):
    found = answers(probs, labels, log_probs=log_probs)
    return {metric.name: float(metric.of(found)) for metric in LABELLED}


def predictions(seed: int, samples: int = 100, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    probs = (scale * torch.randn(samples, 4, generator=source)).softmax(1)
    return probs, torch.randint(4, (samples,), generator=source)


# torchmetrics sums in float32.
ROUNDING = 2e-6


@given(st.integers(0, 10_000), st.sampled_from([0.5, 3.0, 40.0]), st.sampled_from([1, 10, 15]))
def test_ece_is_that_of_torchmetrics(seed, scale, bins):
    probs, labels = predictions(seed, scale=scale)

    expected = multiclass_calibration_error(probs, labels, num_classes=4, n_bins=bins, norm="l1")

    assert ece(probs, labels, bins=bins) == pytest.approx(float(expected), abs=ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_is_that_of_torchmetrics_on_every_edge(dtype):
    edges = torch.linspace(0, 1, 16, dtype=dtype)[8:]
    confidence = torch.cat(
        [edges, edges[:-1].nextafter(torch.ones(7, dtype=dtype)), edges.nextafter(edges - 1)]
    )
    probs = torch.stack([confidence, 1 - confidence], 1)
    labels = torch.arange(len(probs)) % 2

    expected = multiclass_calibration_error(probs, labels, num_classes=2, n_bins=15, norm="l1")

    assert ece(probs, labels) == pytest.approx(float(expected), abs=ROUNDING)


def test_full_confidence_has_a_bin_of_its_own():
    # In one bin, the gaps 0.95 - 0 and 1 - 1 would cancel to |0.5 - 0.975|.
    probs = torch.tensor([[1.0, 0.0], [0.05, 0.95]], dtype=torch.float64)

    assert ece(probs, torch.tensor([0, 0])) == pytest.approx(0.95 / 2)


def test_perfect_and_perfectly_wrong():
    certain = torch.eye(2)

    for metric in (ece, adaptive_ece):
        assert metric(certain, torch.tensor([0, 1])) == 0.0
        assert metric(certain, torch.tensor([1, 0])) == 1.0


def test_confidence_a_little_above_one_counts_as_one():
    probs = torch.tensor([[1.001, 0.0]])

    assert ece(probs, torch.tensor([0])) == 0.0


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 20))
def test_adaptive_ece_by_hand(seed, samples, bins):
    probs, labels = predictions(seed, samples=samples)
    rows = sorted(
        ((float(row.max()), float(row.argmax() == label)) for row, label in zip(probs, labels, strict=True)),
        key=lambda row: row[0],
    )

    total, start = 0.0, 0
    for index in range(bins):
        size = samples // bins + (index < samples % bins)
        total += abs(sum(right - confidence for confidence, right in rows[start : start + size]))
        start += size

    assert adaptive_ece(probs, labels, bins=bins) == pytest.approx(total / samples)


@given(st.integers(0, 10_000))
def test_one_bin_is_the_gap_of_the_means(seed):
    probs, labels = predictions(seed)
    gap = abs(float((probs.argmax(1) == labels).double().mean() - probs.amax(1).double().mean()))

    assert adaptive_ece(probs, labels, bins=1) == pytest.approx(gap)
    assert ece(probs, labels, bins=1) == pytest.approx(gap)
    assert gap <= ece(probs, labels) + 1e-12 <= 1 + 1e-12


@given(st.integers(0, 10_000))
def test_the_order_of_samples_does_not_matter(seed):
    probs, labels = predictions(seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))

    assert every(probs[order], labels[order]) == pytest.approx(every(probs, labels))


@pytest.mark.parametrize("metric", [ece, adaptive_ece])
def test_refuses_no_bins(metric):
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metric(torch.eye(2), torch.tensor([0, 1]), bins=0)


@given(st.integers(0, 10_000), st.sampled_from([0.5, 3.0, 40.0]))
def test_candidates_at_once_have_the_numbers_of_each(seed, scale):
    each = [answers(*predictions(seed + i, scale=scale)) for i in range(4)]
    together = {name: torch.stack([one[name] for one in each]) for name in each[0]}

    for metric in LABELLED:
        assert metric.of(together).tolist() == pytest.approx(
            [float(metric.of(one)) for one in each], abs=1e-12
        )


@pytest.mark.parametrize("metric", [classification.ece, classification.adaptive_ece])
@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        (torch.ones(3), torch.ones(4), "the same non-empty shape"),
        (torch.ones(2, 3), torch.ones(2, 4), "the same non-empty shape"),
        (torch.ones(2, 0), torch.ones(2, 0), "the same non-empty shape"),
        (torch.full((1, 2), 1.5), torch.ones(1, 2), r"confidences must be in \[0, 1\]"),
        (torch.full((2,), -0.1), torch.ones(2), r"confidences must be in \[0, 1\]"),
    ],
)
def test_bad_confidences(metric, confidence, correct, message):
    with pytest.raises(ValueError, match=message):
        metric(confidence, correct)


@pytest.mark.newer
@given(st.integers(0, 10_000))
def test_agrees_with_scikit_learn(seed):
    probs, labels = predictions(seed)
    probs = probs.double() / probs.double().sum(1, keepdim=True)
    found = every(probs, labels)

    assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, probs.argmax(1)))
    assert found["nll"] == pytest.approx(sk.log_loss(labels, probs, labels=range(4)))
    expected = sk.brier_score_loss(labels, probs, labels=range(4), scale_by_half=False)
    assert found["brier"] == pytest.approx(expected)


def test_brier_spans_zero_to_two():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    assert every(certain, torch.tensor([0, 1]))["brier"] == 0.0
    assert every(certain, torch.tensor([1, 0]))["brier"] == 2.0


def test_nll_survives_probabilities_that_underflow():
    log_probs = torch.tensor([[0.0, 500.0]]).log_softmax(1)

    assert log_probs.exp()[0, 0] == 0
    assert every(log_probs.exp(), torch.tensor([0]), log_probs)["nll"] == 500.0
    assert every(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))["nll"] == math.inf


def test_ties_predict_the_lowest_class():
    assert every(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))["accuracy"] == 1.0


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_order_of_passages_is_measured_as_by_scikit_learn(seed, queries):
    source = torch.Generator().manual_seed(seed)
    numbers = torch.randint(queries, (60,), generator=source)
    scores = torch.randn(60, generator=source, dtype=torch.float64)
    relevant = torch.rand(60, generator=source) < 0.2

    values = by_query(scores, relevant, numbers)

    asked = [numbers == query for query in range(queries) if (relevant & (numbers == query)).any()]
    assert all(len(value) == len(asked) for value in values.values())
    for i, mine in enumerate(asked):
        truth, guess = relevant[mine].numpy(), scores[mine].numpy()
        assert float(values["precision"][i]) == pytest.approx(sk.average_precision_score(truth, guess))
        first = 1 + min(int((guess > score).sum()) for score in guess[truth])
        assert float(values["reciprocal_rank"][i]) == pytest.approx(1 / first)
        if len(truth) > 1:  # scikit-learn's NDCG is undefined for a single passage
            assert float(values["gain"][i]) == pytest.approx(sk.ndcg_score([truth], [guess], k=10))
    assert {metric.arguments[0] for metric in RETRIEVAL} == values.keys()
    assert all(value.dtype == torch.float64 and bool((value <= 1).all()) for value in values.values())


def test_no_model_gains_from_ties():
    relevant, queries = torch.tensor([True, False, True, False]), torch.tensor([0, 0, 1, 1])

    values = by_query(torch.tensor([0.0, 0.0, 1.0, 0.0]), relevant, queries)

    assert values["reciprocal_rank"].tolist() == [0.5, 1.0]
    assert values["gain"].tolist() == pytest.approx([1 / math.log2(3), 1.0])


def test_queries_without_a_relevant_passage_do_not_count():
    values = by_query(torch.tensor([1.0, 0.0]), torch.tensor([False, True]), torch.tensor([0, 1]))

    assert all(value.tolist() == [1.0] for value in values.values())
