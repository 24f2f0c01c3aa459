"""Accuracy and proper scores: hand values, scikit-learn, and the edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from hydractl.metrics.classification import accuracy, brier, nll


def predictions(seed: int, samples: int = 40, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, classes, generator=source, dtype=torch.float64)
    return logits, torch.randint(classes, (samples,), generator=source)


@given(st.integers(0, 10_000))
def test_agrees_with_scikit_learn(seed):
    logits, labels = predictions(seed)
    probs = logits.softmax(1)

    assert accuracy(probs, labels) == pytest.approx(sk.accuracy_score(labels, probs.argmax(1)))
    assert nll(logits.log_softmax(1), labels) == pytest.approx(sk.log_loss(labels, probs, labels=range(5)))
    expected = sk.brier_score_loss(labels, probs, labels=range(5), scale_by_half=False)
    assert brier(probs, labels) == pytest.approx(expected)


@given(st.integers(0, 10_000))
def test_the_order_of_samples_does_not_matter(seed):
    logits, labels = predictions(seed)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))

    for metric in (accuracy, brier):
        before = metric(logits.softmax(1), labels)
        assert metric(logits.softmax(1)[order], labels[order]) == pytest.approx(before)


def test_brier_spans_zero_to_two():
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    assert brier(certain, torch.tensor([0, 1])) == 0.0
    assert brier(certain, torch.tensor([1, 0])) == 2.0


def test_brier_leaves_its_input_alone():
    probs = torch.full((3, 2), 0.5, dtype=torch.float64)

    brier(probs, torch.tensor([0, 1, 0]))

    assert torch.equal(probs, torch.full((3, 2), 0.5, dtype=torch.float64))


def test_nll_survives_probabilities_that_underflow():
    log_probs = torch.tensor([[0.0, 500.0]]).log_softmax(1)

    assert log_probs.exp()[0, 0] == 0
    assert nll(log_probs, torch.tensor([0])) == 500.0
    assert nll(torch.tensor([[-math.inf, 0.0]]), torch.tensor([0])) == math.inf


def test_ties_predict_the_lowest_class():
    assert accuracy(torch.tensor([[0.5, 0.5]]), torch.tensor([0])) == 1.0


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.empty(0, 3), torch.empty(0).long(), r"2 non-empty axes, got shape \(0, 3\)"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "are these logits"),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([0]), "off by 2"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), "must be finite"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), r"0\.\.1, got 2\.\.2"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), r"shape \(1,\), got \(2,\)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), r"integers, got torch\.float32"),
    ],
)
def test_refuses_what_it_cannot_score(probs, labels, message):
    for metric in (accuracy, brier):
        with pytest.raises(ValueError, match=message):
            metric(probs, labels)
