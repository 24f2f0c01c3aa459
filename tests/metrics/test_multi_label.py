"""Metrics and temperatures of multi-label models equal those of scikit-learn, torchmetrics and SciPy."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch.nn import functional as F  # noqa: N812 - the field's own name

import hydractl.metrics.temperature
from hydractl.manifest.terms import Temperature
from hydractl.metrics.compute import Measurement, measure, measure_all, ood_score
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import Responses, item_losses
from hydractl.metrics.registry import METRICS
from hydractl.metrics.resampling import Resampling
from hydractl.metrics.selective import FEWEST_POSITIVES, label_thresholds
from hydractl.metrics.temperature import divisor, fit_label_temperatures, fit_temperature, scale, scaled_nll
from hydractl.prediction.run_models import Scaling
from hydractl.tasks import MULTI_LABEL
from hydractl.training.losses import DistillationLoss

CHOSEN = (
    "accuracy",
    "brier",
    "nll",
    "ece",
    "adaptive_ece",
    "f1_micro",
    "f1_macro",
    "average_precision",
    "label_auroc",
    "disagreement",
)


def random_labels(members=3, samples=200, labels=5, *, seed=0, steps=None):
    """Return the members' log odds (M, N, Q), rounded if `steps` is given, and labels (N, Q)."""
    random = torch.Generator().manual_seed(seed)
    odds = 2 * torch.randn(members, samples, labels, generator=random, dtype=torch.float64)
    odds = odds if steps is None else (odds * steps).round() / steps
    applies = (torch.rand(samples, labels, generator=random) < (odds.mean(0) - 0.5).sigmoid()).long()
    return odds, applies


def responses(odds):
    logits = F.pad(odds.unsqueeze(-1), (1, 0))
    return Responses(logits.log_softmax(-1), logits.logsumexp(-1))


def measured(odds, applies, *, resamples=0, metrics=CHOSEN, thresholds=()):
    selection = Measurement(metrics, (), Resampling(resamples=resamples))
    header = SimpleNamespace(architecture=SimpleNamespace(task=MULTI_LABEL), label_thresholds=thresholds)
    return measure_all(responses(odds), applies, {}, header, selection).id_set


@pytest.mark.parametrize(
    ("members", "steps"), [(1, None), (1, 2), (3, None)]
)  # no case of several members with ties, because rounding would break ties of mean probabilities
def test_numbers_are_those_of_other_libraries(members, steps):
    odds, applies = random_labels(members, steps=steps)
    values = {name: estimate.value for name, estimate in measured(odds, applies).items()}
    probs = odds.sigmoid().mean(0)
    decided, truth = (probs > 0.5).long(), applies.numpy()
    ece = torchmetrics.classification.BinaryCalibrationError(n_bins=15)
    hits = decided == applies
    confidence = torch.maximum(probs, 1 - probs)

    assert values["nll"] == pytest.approx(F.binary_cross_entropy(probs, applies.double()).item())
    assert values["brier"] == pytest.approx(2 * (probs - applies).square().mean().item())
    assert values["accuracy"] == pytest.approx(1 - sk.hamming_loss(truth, decided))
    assert values["f1_micro"] == pytest.approx(sk.f1_score(truth, decided, average="micro"))
    assert values["f1_macro"] == pytest.approx(sk.f1_score(truth, decided, average="macro"))
    assert values["average_precision"] == pytest.approx(
        sk.average_precision_score(truth, probs, average="macro")
    )
    assert values["label_auroc"] == pytest.approx(sk.roc_auc_score(truth, probs, average="macro"))
    # calibration of decisions: whether yes or no is correct for a label
    assert values["ece"] == pytest.approx(
        ece(confidence.flatten().float(), hits.flatten().long()).item(), abs=1e-6
    )


def test_a_label_that_is_in_all_samples_or_in_none_does_not_count_where_it_has_no_order():
    odds, applies = random_labels(labels=4)
    applies[:, 0], applies[:, 1] = 0, 1
    values = {name: estimate.value for name, estimate in measured(odds, applies).items()}
    probs, truth = odds.sigmoid().mean(0), applies.numpy()
    assert values["label_auroc"] == pytest.approx(
        sk.roc_auc_score(truth[:, 2:], probs[:, 2:], average="macro")
    )
    assert values["average_precision"] == pytest.approx(
        sk.average_precision_score(truth[:, 1:], probs[:, 1:], average="macro")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert values["f1_macro"] == pytest.approx(
            sk.f1_score(truth, probs > 0.5, average="macro", zero_division=0)
        )


def test_resamples_draw_samples_and_never_labels():
    """With 16 copies of one label the intervals stay equal, since all labels of a sample are drawn together."""
    random = torch.Generator().manual_seed(3)
    odds = torch.randn(1, 400, 1, generator=random, dtype=torch.float64)
    applies = (torch.rand(400, 1, generator=random) < odds[0].sigmoid()).long()
    options = {
        "resamples": 200,
        "metrics": ("accuracy", "nll", "ece", "f1_micro", "f1_macro", "average_precision", "label_auroc"),
    }
    one = measured(odds, applies, **options)
    many = measured(odds.repeat(1, 1, 16), applies.repeat(1, 16), **options)
    for name, estimate in one.items():
        torch.testing.assert_close(many[name].value, estimate.value)
        torch.testing.assert_close(many[name].low, estimate.low)
        assert many[name].count == 400


def test_the_bootstrap_is_that_of_the_metric_on_drawn_samples():
    odds, applies = random_labels(samples=60)
    resampling = Resampling(resamples=5)
    values = measured(odds, applies, resamples=5)
    (drawn,) = next(resampling.draws(60))
    for i, rows in enumerate(drawn):
        for name in ("nll", "f1_micro", "f1_macro", "average_precision", "label_auroc"):
            expected = measured(odds[:, rows], applies[rows])[name].value
            assert float(values[name].low[i]) == pytest.approx(expected), name


@pytest.mark.parametrize("name", SCORES)
def test_an_ood_score_is_the_mean_over_labels(name):
    odds, _ = random_labels(members=2, samples=7)
    said = responses(odds)
    logits = F.pad(odds.unsqueeze(-1), (1, 0))
    expected = torch.stack([SCORES[name].of(logits[:, :, q]) for q in range(5)]).mean(0)
    torch.testing.assert_close(ood_score(said, name), expected)


def test_the_temperature_is_that_of_all_labels_as_samples():
    odds, applies = random_labels(samples=50)
    flat = F.pad(odds.unsqueeze(-1), (1, 0)).flatten(1, 2)
    assert scaled_nll(responses(odds), applies, 1.7) == pytest.approx(
        scaled_nll(flat, applies.flatten(), 1.7)
    )
    found, expected = fit_temperature(responses(odds), applies), fit_temperature(flat, applies.flatten())
    assert found.temperature == pytest.approx(expected.temperature)


def posterior_means(odds, applies, temperature):
    """Compute the posterior mean of ln(T_q / T) of each label by adaptive quadrature."""
    odds, applies = odds.double().numpy(), applies.bool().numpy()

    def likelihood(ln, q):
        logits = odds[:, :, q] / (temperature * math.exp(ln))
        right = scipy.special.expit(np.where(applies[:, q], logits, -logits)).mean(0)
        return math.prod(2 * right)

    def moment(q, deviation, power):
        if not deviation:
            return 0.0**power * likelihood(0.0, q)
        prior = scipy.stats.truncnorm(-3 / deviation, 3 / deviation, scale=deviation)
        integrand = lambda ln: ln**power * likelihood(ln, q) * prior.pdf(ln)
        return scipy.integrate.quad(integrand, -3, 3, points=[0], limit=200)[0]

    deviations, labels = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6), range(applies.shape[1])
    evidences, firsts = (np.array([[moment(q, d, k) for q in labels] for d in deviations]) for k in (0, 1))
    weights = evidences.prod(1) / evidences.prod(1).sum()
    return weights @ (firsts / evidences)


@pytest.mark.spread(cases=2)
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_temperatures_of_labels_are_posterior_means(members, seed):
    generator = torch.Generator().manual_seed(seed)
    odds = 3 * torch.randn(members, 12, 3, generator=generator) * torch.tensor([0.3, 1.0, 4.0])
    applies = (torch.rand(12, 3, generator=generator) < odds[0].div(3).sigmoid()).long()
    found = fit_label_temperatures(responses(odds), applies, 1.4)
    expected = posterior_means(odds, applies, 1.4)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(np.log(np.array(found) / 1.4), expected, atol=1e-4)


def overconfident(factors, *, samples, seed=0, members=1):
    """Return log odds of labels that are too large by the given factors, and labels."""
    generator = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(samples, len(factors), generator=generator, dtype=torch.float64)
    applies = torch.rand(true.shape, generator=generator, dtype=torch.float64) < true.sigmoid()
    return (true * torch.tensor(factors)).expand(members, -1, -1), applies.long()


def test_with_many_samples_each_label_has_the_temperature_that_it_would_have_alone():
    odds, applies = overconfident([0.7, 1.0, 2.5], samples=20_000)
    common = fit_temperature(responses(odds), applies).temperature
    found = fit_label_temperatures(responses(odds), applies, common)
    alone = [fit_temperature(responses(odds[..., [q]]), applies[:, [q]]).temperature for q in range(3)]
    assert found == pytest.approx(alone, rel=0.01)


def test_labels_that_are_alike_share_their_temperature():
    """Temperatures fitted separately would have more than ten times this standard deviation."""
    odds, applies = overconfident([1.5] * 20, samples=100)
    common = fit_temperature(responses(odds), applies).temperature
    found = fit_label_temperatures(responses(odds), applies, common)
    alone = [fit_temperature(responses(odds[..., [q]]), applies[:, [q]]).temperature for q in range(20)]
    assert np.log(found).std() * 10 < np.log(alone).std()
    assert found == pytest.approx([common] * 20, rel=0.02)


@pytest.mark.parametrize("stored", [Temperature(1.3, (1.1, 1.3, 1.7)), Temperature(1.3), Temperature()])
def test_temperatures_on_top_of_stored_ones_are_those_of_raw_logits(stored):
    """The product of stored and new temperatures equals the temperature fitted on raw logits."""
    odds, applies = overconfident([0.7, 1.0, 2.5], samples=200)
    header = SimpleNamespace(architecture=SimpleNamespace(task=MULTI_LABEL))
    options = {"row": "x", "header": header}
    raw = Scaling.fit(responses(odds), applies, **options).temperature
    scaled = responses(odds / divisor(stored).squeeze() if stored.by_label else odds / stored.common)
    found = Scaling.fit(scaled, applies, **options, stored=[stored]).temperature
    total = stored * found
    assert total.common == pytest.approx(raw.common, rel=1e-5)
    assert total.by_label == pytest.approx(raw.by_label, rel=1e-5)
    assert len(total.by_label) == 3


def test_a_single_label_has_the_temperature_of_all():
    odds, applies = overconfident([2.5], samples=50)
    assert fit_label_temperatures(responses(odds), applies, 1.4) == (1.4,)


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_temperatures_of_labels_stay_in_their_range(size):
    odds, applies = overconfident([1.0, size], samples=50)
    found = fit_label_temperatures(responses(odds), applies, 1.0)
    assert np.isfinite(found).all()
    assert np.abs(np.log(found)).max() <= 3 + 1e-9


def test_neither_the_order_nor_the_parts_of_samples_change_temperatures_of_labels(monkeypatch):
    odds, applies = overconfident([0.7, 2.5], samples=64, members=2)
    expected = fit_label_temperatures(responses(odds), applies, 1.2)
    monkeypatch.setattr(hydractl.metrics.temperature, "NUMBERS_AT_ONCE", 24)
    turned = fit_label_temperatures(responses(odds.flip(1)), applies.flip(0), 1.2)
    assert turned == pytest.approx(expected, rel=1e-9)
    swapped = fit_label_temperatures(responses(odds.flip(2)), applies.flip(1), 1.2)
    assert swapped[::-1] == pytest.approx(expected, rel=1e-9)


def test_predictions_are_scaled_label_by_label():
    odds, _ = random_labels(members=2, samples=7)
    by_label = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1], dtype=torch.float64)
    expected, found = responses(odds / by_label), scale(responses(odds), by_label.unsqueeze(-1))
    torch.testing.assert_close(found.log_probs, expected.log_probs.to(found.log_probs.dtype))
    torch.testing.assert_close(found.logits(), expected.logits())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_binary_cross_entropy(smoothing):
    odds, applies = random_labels(members=2, samples=6)
    logits = F.pad(odds.unsqueeze(-1), (1, 0))
    smooth = applies.double() * (1 - smoothing) + smoothing / 2
    expected = F.binary_cross_entropy_with_logits(odds, smooth.expand(odds.shape), reduction="none").mean(-1)
    torch.testing.assert_close(item_losses(logits, applies, label_smoothing=smoothing), expected)
    shares = F.one_hot(applies, 2).double()
    torch.testing.assert_close(item_losses(logits, shares, label_smoothing=smoothing), expected)


def test_models_with_one_label_have_none_of_these():
    odds = torch.randn(1, 20, 2, dtype=torch.float64)
    said = Responses(odds.log_softmax(-1))
    options = {"metrics": tuple(METRICS), "resampling": Resampling(resamples=0)}
    assert set(CHOSEN[5:9]).isdisjoint(measure(said, torch.arange(20) % 2, {}, scores=(), **options).id_set)


@pytest.mark.more
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(30, 60), st.sampled_from([None, 1, 2]))
def test_a_threshold_of_a_label_has_the_highest_f1(seed, samples, steps):
    odds, applies = random_labels(1, samples, 3, seed=seed, steps=steps)
    probs = odds[0].sigmoid().float()
    found = label_thresholds(probs, applies)
    for q, threshold in enumerate(found):
        truth = applies[:, q].numpy()
        of = lambda bound, q=q, truth=truth: sk.f1_score(truth, probs[:, q].double() > bound, zero_division=0)
        if truth.sum() < FEWEST_POSITIVES:
            assert threshold == 0.5
            continue
        others = probs[:, q].double().unique()
        assert of(threshold) == pytest.approx(max(of(bound) for bound in (0, *(others - 1e-9).tolist())))
        assert 0 < threshold < 1
        assert (
            probs[:, q].double() - threshold
            # no sample has a probability equal to the threshold, so rounding changes no decision
        ).abs().min() > 0


def test_f1_is_of_the_thresholds_and_other_numbers_are_not():
    odds, applies = random_labels()
    thresholds = (0.1, 0.3, 0.5, 0.7, 0.9)
    values = {name: each.value for name, each in measured(odds, applies, thresholds=thresholds).items()}
    decided = odds.sigmoid().mean(0) > torch.tensor(thresholds)
    assert values["f1_macro"] == pytest.approx(sk.f1_score(applies.numpy(), decided, average="macro"))
    assert values["f1_micro"] == pytest.approx(sk.f1_score(applies.numpy(), decided, average="micro"))
    plain = {name: each.value for name, each in measured(odds, applies).items()}
    assert {name for name in plain if plain[name] != values[name]} == {"f1_micro", "f1_macro"}


@pytest.mark.parametrize("by_member", [False, True])
def test_a_teacher_is_learnt_label_by_label(by_member):
    odds, applies = random_labels(members=2, samples=6)
    theirs, _ = random_labels(members=2, samples=6, seed=9)
    as_logits = lambda z: F.pad(z.unsqueeze(-1), (1, 0))
    lesson = DistillationLoss(
        teachers=(lambda _: as_logits(theirs),),
        temperature=2.0,
        weight=0.3,
        by_member=by_member,
        split=by_member,
    )
    student = odds if by_member else odds[:1]
    losses = item_losses(as_logits(student), applies).mean(0)
    targets = (theirs / 2).sigmoid() if by_member else (theirs / 2).sigmoid().mean(0, keepdim=True)
    taught, learnt = (
        torch.distributions.Bernoulli(p) for p in (targets.float(), (student / 2).sigmoid().float())
    )
    divergence = torch.distributions.kl_divergence(taught, learnt).mean(-1).mean(0)
    found = lesson(losses, as_logits(student if by_member else student[0]), torch.empty(0))
    torch.testing.assert_close(
        found, 0.7 * losses + 0.3 * 4 * divergence, check_dtype=False, atol=1e-6, rtol=0
    )
