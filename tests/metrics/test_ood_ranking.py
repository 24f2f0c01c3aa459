"""Ranking metrics: scikit-learn, hand values with ties, and invariances."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torchmetrics.functional.classification import binary_auroc, binary_average_precision

from hydractl.metrics import ood_ranking
from hydractl.metrics.per_sample import places


def on_scores(metric):
    """Return a metric as a function of ID and OOD scores."""

    def measure(id_scores, ood_scores, **options):
        return float(metric(**places(id_scores, ood_scores), **options))

    return measure


auroc, accepted_at_tpr, fpr_at_tpr, aupr_out, aupr_in, aupr_out_trapezoid, aupr_in_trapezoid = ALL = [
    on_scores(metric.compute) for metric in ood_ranking.RANKING
]


@st.composite
def tied_scores(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw ID and OOD scores on a coarse grid, so that ties within and across are common."""
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


@given(tied_scores(), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_curves_are_those_of_scikit_learn_to_the_last_bit(scores, tpr):
    is_ood, score = labelled(*scores)
    fpr, caught, _ = sk.roc_curve(is_ood, score, drop_intermediate=False)

    def trapezoids(positive, ranked):
        precision, recall, _ = sk.precision_recall_curve(positive, ranked, drop_intermediate=False)
        return sk.auc(recall, precision)

    assert fpr_at_tpr(*scores, tpr=tpr) == fpr[(caught >= tpr).argmax()]
    accepted, kept, _ = sk.roc_curve(1 - is_ood, -score, drop_intermediate=False)
    assert accepted_at_tpr(*scores, tpr=tpr) == accepted[(kept >= tpr).argmax()]
    assert aupr_out(*scores) == sk.average_precision_score(is_ood, score)
    assert aupr_in(*scores) == sk.average_precision_score(1 - is_ood, -score)
    assert aupr_out_trapezoid(*scores) == trapezoids(is_ood, score)
    assert aupr_in_trapezoid(*scores) == trapezoids(1 - is_ood, -score)


@given(tied_scores())
def test_auroc_and_average_precision_are_those_of_torchmetrics(scores):
    # Scores in [0, 1]: torchmetrics applies a sigmoid to batches with other scores.
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
@pytest.mark.parametrize("metric", ood_ranking.RANKING, ids=lambda m: m.name)
def test_many_candidates_are_scored_as_one_by_one(metric, dtype):
    source = torch.Generator().manual_seed(0)
    id_scores = torch.randn(6, 50, generator=source).to(dtype)
    ood_scores = torch.randn(6, 30, generator=source).to(dtype)

    together = metric.of(places(id_scores, ood_scores))

    assert together.dtype == torch.float64
    each = [on_scores(metric.compute)(a, b) for a, b in zip(id_scores, ood_scores, strict=True)]
    assert together.tolist() == pytest.approx(each, abs=1e-14)
    if metric.name in {"auroc", "fpr95"}:  # computed from integer counts until the last division
        assert together.tolist() == each


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("metric", ood_ranking.RANKING, ids=lambda m: m.name)
@given(tied_scores(), st.integers(0, 1000))
def test_places_that_nobody_has_change_nothing(metric, scores, seed):
    source = torch.Generator().manual_seed(seed)
    picks = [torch.randint(len(part), (len(part),), generator=source) for part in scores]
    whole = places(*scores)

    drawn = {side: own[pick] for (side, own), pick in zip(whole.items(), picks, strict=True)}

    expected = on_scores(metric.compute)(*(part[pick] for part, pick in zip(scores, picks, strict=True)))
    assert float(metric.of(drawn)) == pytest.approx(expected, abs=1e-12)


def test_perfect_separation_and_its_reverse():
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9])

    assert [metric(low, high) for metric in ALL] == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
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
    # 19 ID scores are at most 18, and three of four OOD scores are not higher.
    assert accepted_at_tpr(ood_scores, torch.tensor([17.5, 18.0, -1.0, 18.5])) == 0.75


def test_steps_and_trapezoids_differ():
    # Precision over recall: (0, 1), (0, 0), (1, 1/2), the first point being scikit-learn's convention.
    scores = torch.tensor([1.0]), torch.tensor([0.0])

    assert aupr_out(*scores) == 0.5
    assert aupr_out_trapezoid(*scores) == 0.25


@pytest.mark.parametrize("tpr", [0.0, 1.5])
def test_refuses_an_impossible_rate(tpr):
    with pytest.raises(ValueError, match=rf"\(0, 1\], got {tpr}"):
        fpr_at_tpr(torch.zeros(1), torch.zeros(1), tpr=tpr)
