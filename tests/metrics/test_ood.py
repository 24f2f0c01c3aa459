"""Ranking metrics: scikit-learn, hand values with ties, and invariances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from hydractl.metrics.ood import (
    LOGIT_SCORES,
    aupr_in,
    aupr_in_trapezoid,
    aupr_out,
    aupr_out_trapezoid,
    auroc,
    auroc_many,
    fpr_at_tpr,
    fpr_many,
    msp_score,
)

ALL = [auroc, fpr_at_tpr, aupr_out, aupr_in, aupr_out_trapezoid, aupr_in_trapezoid]


@st.composite
def tied_scores(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """ID and OOD scores on a coarse grid, so that ties within and across are common."""
    grid = st.lists(st.integers(-4, 4), min_size=1, max_size=30)
    return tuple(torch.tensor(draw(grid), dtype=torch.float64) / 8 for _ in range(2))


def labelled(id_scores, ood_scores):
    is_ood = torch.cat([torch.zeros(len(id_scores)), torch.ones(len(ood_scores))])
    return is_ood.numpy(), torch.cat([id_scores, ood_scores]).numpy()


@given(tied_scores())
def test_auroc_and_average_precision_are_those_of_scikit_learn(scores):
    is_ood, score = labelled(*scores)

    assert auroc(*scores) == pytest.approx(sk.roc_auc_score(is_ood, score), abs=1e-12)
    assert aupr_out(*scores) == pytest.approx(sk.average_precision_score(is_ood, score), abs=1e-12)
    assert aupr_in(*scores) == pytest.approx(sk.average_precision_score(1 - is_ood, -score), abs=1e-12)


@given(tied_scores())
def test_auroc_and_average_precision_are_those_of_torchmetrics(scores):
    # Scores in [0, 1]: outside, torchmetrics squashes them batch by batch.
    inside = [part + 0.5 for part in scores]
    is_ood, _ = labelled(*inside)
    target, preds = torch.from_numpy(is_ood).long(), torch.cat(inside)

    assert auroc(*inside) == pytest.approx(float(binary_auroc(preds, target)), abs=1e-6)
    assert aupr_out(*inside) == pytest.approx(float(binary_average_precision(preds, target)), abs=1e-6)


@given(tied_scores())
def test_auroc_counts_pairs(scores):
    id_scores, ood_scores = scores
    wins = (ood_scores[:, None] > id_scores).sum() + 0.5 * (ood_scores[:, None] == id_scores).sum()

    assert auroc(*scores) == float(wins.double() / (len(id_scores) * len(ood_scores)))


@given(tied_scores())
def test_fpr_is_the_first_threshold_that_catches_enough(scores):
    id_scores, ood_scores = scores
    thresholds = sorted(set(torch.cat(scores).tolist()), reverse=True)
    enough = next(t for t in thresholds if float((ood_scores >= t).double().mean()) >= 0.95)

    assert fpr_at_tpr(*scores) == pytest.approx(float((id_scores >= enough).double().mean()))


@given(tied_scores())
def test_a_growing_map_of_the_scores_changes_nothing(scores):
    warped = [part.exp() * 7 - 3 for part in scores]

    for metric in ALL:
        assert metric(*warped) == metric(*scores)


@given(tied_scores(), st.integers(0, 1000))
def test_the_order_of_samples_does_not_matter(scores, seed):
    source = torch.Generator().manual_seed(seed)
    mixed = [part[torch.randperm(len(part), generator=source)] for part in scores]

    for metric in ALL:
        assert metric(*mixed) == metric(*scores)


@given(tied_scores())
def test_swapping_and_negating_swaps_the_roles(scores):
    id_scores, ood_scores = scores

    assert auroc(-ood_scores, -id_scores) == auroc(*scores)
    assert auroc(ood_scores, id_scores) == pytest.approx(1 - auroc(*scores), abs=1e-12)
    assert aupr_in(*scores) == aupr_out(-ood_scores, -id_scores)
    assert aupr_in_trapezoid(*scores) == aupr_out_trapezoid(-ood_scores, -id_scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_candidates_are_scored_as_one_by_one(dtype):
    source = torch.Generator().manual_seed(0)
    id_scores = torch.randn(6, 50, generator=source).to(dtype)
    ood_scores = torch.randn(6, 30, generator=source).to(dtype)

    together = auroc_many(id_scores, ood_scores)

    assert together.dtype == torch.float64
    assert together.tolist() == [auroc(a, b) for a, b in zip(id_scores, ood_scores, strict=True)]


def test_perfect_separation_and_its_reverse():
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9])

    assert [metric(low, high) for metric in ALL] == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert auroc(high, low) == 0.0
    assert fpr_at_tpr(high, low) == 1.0


def test_all_scores_equal():
    same = torch.full((3,), 0.5), torch.full((1,), 0.5)

    assert auroc(*same) == 0.5
    assert fpr_at_tpr(*same) == 1.0
    assert aupr_out(*same) == 0.25
    assert aupr_in(*same) == 0.75


def test_nineteen_of_twenty_is_95_percent():
    ood_scores = torch.arange(20.0)
    id_scores = torch.tensor([0.5, 1.0, -1.0, -2.0])

    # 19 OOD scores are at least 1, and one ID score ties with the last of them.
    assert fpr_at_tpr(id_scores, ood_scores) == 0.25
    assert fpr_at_tpr(id_scores, ood_scores, tpr=1.0) == 0.5


def test_steps_and_trapezoids_differ():
    # Precision over recall: (0, 1), (0, 0), (1, 1/2), the first point being scikit-learn's convention.
    scores = torch.tensor([1.0]), torch.tensor([0.0])

    assert aupr_out(*scores) == 0.5
    assert aupr_out_trapezoid(*scores) == 0.25


def test_msp_is_higher_for_the_unsure():
    scores = msp_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))

    assert scores.tolist() == [-1.0, -0.5]


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.empty(0), r"non-empty axes, got shape \(0,\)"),
        (torch.tensor([math.nan]), "must be finite"),
        (torch.tensor([-math.inf]), "must be finite"),
        (torch.zeros(2, 2), r"got shape \(2, 2\)"),
    ],
)
def test_refuses_what_cannot_be_ranked(metric, bad, message):
    with pytest.raises(ValueError, match="ID scores .*" + message):
        metric(bad, torch.tensor([1.0]))
    with pytest.raises(ValueError, match="OOD scores .*" + message):
        metric(torch.tensor([1.0]), bad)


def test_refuses_candidates_that_do_not_pair():
    with pytest.raises(ValueError, match="ID scores have 2 candidates, but OOD scores have 3"):
        auroc_many(torch.zeros(2, 4), torch.zeros(3, 4))


@pytest.mark.parametrize("tpr", [0.0, 1.5])
def test_refuses_an_impossible_rate(tpr):
    with pytest.raises(ValueError, match=rf"\(0, 1\], got {tpr}"):
        fpr_at_tpr(torch.zeros(1), torch.zeros(1), tpr=tpr)


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_candidates_at_once_have_the_fpr_of_each(seed, tpr):
    source = torch.Generator().manual_seed(seed)
    inside, outside = (torch.randint(-8, 8, (5, n), generator=source).double() / 8 for n in (23, 41))

    together = fpr_many(inside, outside, tpr=tpr)

    assert together.tolist() == [fpr_at_tpr(*pair, tpr=tpr) for pair in zip(inside, outside, strict=True)]


@pytest.mark.parametrize("tpr", [0.0, 1.5])
def test_fpr_of_candidates_refuses_a_share_out_of_range(tpr):
    with pytest.raises(ValueError, match="tpr must lie"):
        fpr_many(torch.zeros(1, 2), torch.zeros(1, 2), tpr=tpr)


def test_fpr_of_candidates_refuses_scores_of_others():
    with pytest.raises(ValueError, match="2 candidates, but OOD scores have 1"):
        fpr_many(torch.zeros(2, 2), torch.zeros(1, 2))


@given(st.integers(0, 10_000))
def test_scores_of_logits(seed):
    logits = 4 * torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs = logits.softmax(-1)

    found = {name: score(logits) for name, score in LOGIT_SCORES.items()}

    assert torch.equal(found["msp"].flatten(), msp_score(probs.flatten(0, 1)))
    torch.testing.assert_close(found["energy"], -logits.exp().sum(-1).log())
    torch.testing.assert_close(found["entropy"], -(probs * probs.log()).sum(-1))
    assert torch.equal(found["max-logit"], -logits.max(-1).values)
    assert all(score.shape == (3, 6) for score in found.values())


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_scores_grow_with_strangeness(name):
    sure, unsure = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([1.0, 0.9, 0.8])

    assert LOGIT_SCORES[name](unsure) > LOGIT_SCORES[name](sure)
