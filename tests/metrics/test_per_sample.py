"""Values per sample: `answers` rejects invalid predictions, and `places` depends only on the order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.metrics.per_sample import answers, ensemble_log_probs, item_losses, opinions, places


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.empty(0, 3), torch.empty(0).long(), r"2 non-empty axes, got shape \(0, 3\)"),
        (
            torch.tensor([[2.0, -1.0]]),
            torch.tensor([0]),
            ("probabilities must not be negative; pass probabilities, not logits"),
        ),
        (torch.tensor([[2.0, 1.0]]), torch.tensor([0]), "off by 2"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), "must be finite"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), r"0\.\.1, got 2\.\.2"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), r"shape \(1,\), got \(2,\)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), r"integers, got torch\.float32"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([True]), r"integers, got torch\.bool"),
    ],
)
def test_refuses_what_it_cannot_score(probs, labels, message):
    with pytest.raises(ValueError, match=message):
        answers(probs, labels)


def test_answers_leave_the_probabilities_alone():
    probs = torch.full((3, 2), 0.5, dtype=torch.float64)

    answers(probs, torch.tensor([0, 1, 0]))

    assert torch.equal(probs, torch.full((3, 2), 0.5, dtype=torch.float64))


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_the_ensemble_is_the_mean_of_its_members_probabilities(seed, members):
    source = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(members, 7, 4, generator=source, dtype=torch.float64)

    found = ensemble_log_probs(logits.log_softmax(-1)).exp()

    torch.testing.assert_close(found, logits.softmax(-1).mean(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_opinions_have_the_digits_of_single_precision_at_least(dtype):
    logits = 3 * torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = logits.to(dtype)

    members, ensemble = opinions(logits)

    wide = torch.promote_types(dtype, torch.float32)
    assert torch.equal(members, logits.to(wide).log_softmax(-1))
    assert members.dtype == ensemble.dtype == wide
    torch.testing.assert_close(ensemble.exp(), logits.to(wide).softmax(-1).mean(0))


@given(st.lists(st.integers(-3, 3), min_size=1), st.lists(st.integers(-3, 3), min_size=1))
def test_places_are_those_of_the_distinct_scores_in_order(inside, outside):
    distinct = sorted({*inside, *outside}, reverse=True)

    found = places(torch.tensor(inside) / 8, torch.tensor(outside) / 8)

    assert found["inside"].tolist() == [distinct.index(score) for score in inside]
    assert found["outside"].tolist() == [distinct.index(score) for score in outside]


GOOD = torch.tensor([1.0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.empty(0), r"non-empty axes, got shape \(0,\)"),
        (torch.tensor([math.nan]), "must be finite"),
        (torch.tensor([-math.inf]), "must be finite"),
    ],
)
def test_refuses_what_cannot_be_ranked(bad, message):
    with pytest.raises(ValueError, match="ID scores .*" + message):
        places(bad, GOOD)
    with pytest.raises(ValueError, match="OOD scores .*" + message):
        places(GOOD, bad)


@pytest.mark.parametrize(("ours", "theirs"), [((2, 4), (3, 4)), ((2, 2), (4,))])
def test_refuses_candidates_that_do_not_pair(ours, theirs):
    with pytest.raises(ValueError, match=r"ID scores have shape \(2, .\), but OOD scores have shape"):
        places(torch.zeros(ours), torch.zeros(theirs))


def sigmoid_questions(seed):
    source = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(2, 5, 4, generator=source, dtype=torch.float64)
    labels = torch.randint(2, (5, 4), generator=source)
    return z, labels


@given(st.integers(0, 10_000))
def test_losses_of_one_question_are_the_cross_entropies_of_every_member_for_classes_and_probabilities(seed):
    source = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(3, 5, 4, generator=source), torch.randint(4, (5,), generator=source)

    losses = item_losses(logits, labels, label_smoothing=0.1)

    for of_member, expected in zip(losses, logits, strict=True):
        smoothed = F.cross_entropy(expected, labels, reduction="none", label_smoothing=0.1)
        torch.testing.assert_close(of_member, smoothed)
    certain = F.one_hot(labels, 4).float()
    torch.testing.assert_close(item_losses(logits, certain, label_smoothing=0.1), losses)


@given(st.integers(0, 10_000))
def test_losses_of_several_questions_are_those_of_sigmoids(seed):
    z, labels = sigmoid_questions(seed)

    losses = item_losses(F.pad(z.unsqueeze(-1), (1, 0)), labels)

    expected = F.binary_cross_entropy_with_logits(z, labels.expand(z.shape).double(), reduction="none")
    torch.testing.assert_close(losses, expected.mean(-1))
