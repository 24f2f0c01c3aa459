"""Distillation losses."""

from __future__ import annotations

import pytest
import torch

from hydractl.training.losses import DistillationLoss

generator = torch.Generator().manual_seed(0)
LABELLED = torch.rand(5, generator=generator)
INPUTS = torch.zeros(5, 1)
LOGITS = 3 * torch.randn(4, 3, 5, 7, generator=generator)  # (teachers, their members, B, C)
STUDENT = torch.randn(3, 5, 7, generator=generator)


def says(logits):
    return lambda _inputs: logits


def divergence(probs, logits, temperature):
    """Return T² KL(p || softmax(z / T)) of a sample, by definition in float64."""
    q = torch.softmax(logits.double() / temperature, -1)
    return temperature**2 * sum(p * (p.log() - r.log()) for p, r in zip(probs.double(), q, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_a_model_learns_the_mean_of_its_teachers_and_a_hydra_counts_as_one(temperature):
    lesson = DistillationLoss(
        teachers=(says(LOGITS[0]), says(LOGITS[1, :1])), temperature=temperature, weight=0.25, by_member=False
    )

    found = lesson(LABELLED, STUDENT[0], INPUTS)

    for b in range(5):
        of_hydra = torch.stack([torch.softmax(z / temperature, -1) for z in LOGITS[0, :, b]]).mean(0)
        mean = (of_hydra + torch.softmax(LOGITS[1, 0, b] / temperature, -1)) / 2
        expected = 0.75 * LABELLED[b] + 0.25 * divergence(mean, STUDENT[0, b], temperature)
        assert found[b].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("split", [False, True])
def test_each_member_learns_from_its_own_teacher(split):
    """The teachers are three models, or the three members of a hydra."""
    teachers = (says(LOGITS[0]),) if split else tuple(says(z[None]) for z in LOGITS[0])
    lesson = DistillationLoss(teachers=teachers, temperature=2.0, weight=1.0, by_member=True, split=split)

    found = lesson(LABELLED, STUDENT, INPUTS)

    for b in range(5):
        each = [divergence(torch.softmax(LOGITS[0, m, b] / 2, -1), STUDENT[m, b], 2.0) for m in range(3)]
        assert found[b].item() == pytest.approx((sum(each) / 3).item(), abs=1e-5)


def test_of_words_it_is_the_mean_over_those_that_texts_have():
    words = torch.tensor([[1, 2, -1], [4, -1, -1]])
    teacher, student = 3 * torch.randn(2, 1, 2, 3, 7, generator=torch.Generator().manual_seed(1))
    lesson = DistillationLoss(teachers=(says(teacher),), temperature=2.0, weight=1.0, by_member=False)

    found = lesson(torch.zeros(2), student[0], {"word_starts": words}).mean()

    each = [
        divergence(torch.softmax(teacher[0, i, q] / 2, -1), student[0, i, q], 2.0)
        for i, q in ((0, 0), (0, 1), (1, 0))
    ]
    assert found.item() == pytest.approx((sum(each) / 3).item(), abs=1e-5)


def test_who_says_what_the_teacher_says_has_nothing_to_learn():
    student = LOGITS[0, :1].clone().requires_grad_()
    lesson = DistillationLoss(teachers=(says(student),), temperature=2.0, weight=1.0, by_member=True)

    loss = lesson(LABELLED, student, INPUTS).sum()
    loss.backward()

    assert loss.abs() < 1e-5
    assert student.grad.abs().max() < 1e-6


def test_probabilities_of_zero_are_no_trouble():
    sure = torch.full((1, 5, 7), -1e4)
    sure[..., 0] = 1e4
    lesson = DistillationLoss(teachers=(says(sure),), temperature=1.0, weight=1.0, by_member=False)

    assert lesson(LABELLED, STUDENT[0], INPUTS).isfinite().all()
