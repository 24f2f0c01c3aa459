"""Temperature scaling: what T does to predictions, and that the fitted one is the best."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.metrics import temperature as module
from hydractl.metrics.per_sample import answers
from hydractl.metrics.temperature import HIGHEST, LOWEST, fit_temperature, scale_log_probs, scaled_nll

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 60), st.integers(1, 6))


def drawn(seed, members=1, samples=300, classes=5, scale=1.0):
    """Logits, and labels that one softmax of them gave, so that the best temperature is about `scale`."""
    source = torch.Generator().manual_seed(seed)
    shared = 1.5 * torch.randn(samples, classes, generator=source, dtype=torch.float64)
    labels = torch.multinomial(shared.softmax(1), 1, generator=source)[:, 0]
    noise = 0.5 * torch.randn(members, samples, classes, generator=source, dtype=torch.float64)
    return scale * (shared + (noise if members > 1 else 0)), labels


def accuracy(probs, labels):
    return float(answers(probs, labels)["hits"].double().mean())


def nll(log_probs, labels):
    return float(answers(log_probs.exp(), labels, log_probs=log_probs)["nll"].mean())


def mixture(logits, temperature):
    """The definition, written down once more."""
    return (logits / temperature).softmax(-1).mean(0)


def brute_force(logits, labels, values):
    costs = [nll(mixture(logits, t).log(), labels) for t in values]
    return min(costs), values[costs.index(min(costs))]


def single(logits):
    return logits if logits.ndim == 3 else logits[None]


# --- scaling ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 9999), st.floats(0.05, 20), SHAPES)
def test_scaled_log_probabilities_are_those_of_scaled_logits(seed, temperature, shape):
    logits = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = (logits / temperature).log_softmax(-1)

    torch.testing.assert_close(scale_log_probs(logits.log_softmax(-1), temperature), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_changes_nothing_and_the_dtype_stays(dtype):
    found = torch.randn(2, 9, 4).to(dtype).log_softmax(-1)

    assert torch.equal(scale_log_probs(found, 1), found)
    assert scale_log_probs(found, 2).dtype == dtype


def test_scaling_twice_is_scaling_by_the_product():
    found = drawn(0, members=2)[0].log_softmax(-1)

    torch.testing.assert_close(scale_log_probs(scale_log_probs(found, 2.0), 1.5), scale_log_probs(found, 3.0))


@given(st.integers(0, 9999), st.floats(0.05, 20))
def test_the_accuracy_of_a_single_model_stays(seed, temperature):
    logits, labels = drawn(seed)
    found = single(logits).log_softmax(-1)

    before, after = (accuracy(x[0].exp(), labels) for x in (found, scale_log_probs(found, temperature)))

    assert before == after


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_temperature_is_refused(temperature):
    with pytest.raises(ValueError, match="positive and finite"):
        scale_log_probs(torch.zeros(1, 1, 2), temperature)


# --- its NLL ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 9999), st.floats(0.05, 20), SHAPES)
def test_the_nll_is_that_of_the_mean_of_scaled_softmaxes(seed, temperature, shape):
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=source, dtype=torch.float64)
    labels = torch.randint(shape[2], shape[1:2], generator=source)

    found = scaled_nll(logits, labels, temperature)

    assert found == pytest.approx(nll(mixture(logits, temperature).log(), labels), abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 40, 10**9])
def test_the_chunk_does_not_matter(chunk, monkeypatch):
    logits, labels = drawn(1, members=3)
    expected = scaled_nll(logits, labels, 2.0), scale_log_probs(logits, 2.0)
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", chunk)

    assert scaled_nll(logits, labels, 2.0) == pytest.approx(expected[0], abs=1e-12)
    assert torch.equal(scale_log_probs(logits, 2.0), expected[1])


# --- the fit ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([0.3, 1.0, 3.0]))
@settings(max_examples=15)
def test_no_value_of_a_fine_grid_is_better(seed, members, scale):
    logits, labels = drawn(seed, members, samples=60, scale=scale)
    logits = single(logits)
    grid = torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), 400, dtype=torch.float64).tolist()

    found = fit_temperature(logits, labels)
    cost, best = brute_force(logits, labels, grid)

    assert scaled_nll(logits, labels, found.temperature) <= cost + 1e-12
    assert found.temperature == pytest.approx(best, rel=0.02)


@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([2.0, 3.0]))
@settings(max_examples=15)
def test_logits_times_three_have_three_times_the_temperature(seed, members, factor):
    logits, labels = drawn(seed, members)
    logits = single(logits)

    before, after = (fit_temperature(x.log_softmax(-1), labels) for x in (logits, factor * logits))

    assert not before.at_bound
    assert after.temperature == pytest.approx(factor * before.temperature, rel=1e-5)


def test_the_temperature_that_labels_were_drawn_at_is_found():
    logits, labels = drawn(0, samples=20_000, scale=2.5)

    assert fit_temperature(single(logits), labels).temperature == pytest.approx(2.5, rel=0.05)


@given(st.integers(0, 9999), SHAPES, st.floats(0.01, 30))
@settings(max_examples=30)
def test_the_nll_is_never_worse_than_without(seed, shape, scale):
    source = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=source)
    labels = torch.randint(shape[2], shape[1:2], generator=source)

    found = fit_temperature(logits.log_softmax(-1), labels)

    assert LOWEST <= found.temperature <= HIGHEST
    said = (logits.argmax(-1) == labels).any(0)
    doubt = 1 / (len(labels) + 2) if shape[2] > 1 and bool(said.all()) else 0.0
    own, one = (scaled_nll(logits.log_softmax(-1), labels, t, doubt=doubt) for t in (found.temperature, 1.0))
    assert own <= one


def test_at_the_minimum_the_derivative_is_zero():
    """For one model dNLL/dT = 0 means that the expected logit equals the label's, on average."""
    logits, labels = drawn(3)

    scaled = logits / fit_temperature(single(logits), labels).temperature
    expected = (scaled.softmax(1) * scaled).sum(1)

    assert float(expected.mean()) == pytest.approx(float(scaled.gather(1, labels[:, None]).mean()), abs=1e-6)


def test_equal_members_have_the_temperature_of_one():
    logits, labels = drawn(4)

    one, three = (fit_temperature(single(logits).expand(n, -1, -1), labels) for n in (1, 3))

    assert one.temperature == pytest.approx(three.temperature, rel=1e-5)


@given(st.integers(2, 60), st.integers(2, 6), st.floats(0.5, 5))
@settings(max_examples=10)
def test_a_model_that_is_always_right_is_as_sure_as_so_many_answers_allow(samples, classes, scale):
    """One logit for the label, zero elsewhere: the best T gives the label (N + 1) / (N + 2), Platt's target."""
    labels = torch.arange(samples) % classes
    logits = scale * torch.eye(classes, dtype=torch.float64)[labels][None]

    found = fit_temperature(logits, labels)

    best = scale / math.log((samples + 1) * (classes - 1))
    assert found.temperature == pytest.approx(min(max(best, LOWEST), HIGHEST), rel=1e-4)


def test_members_of_whom_one_is_always_right_are_not_made_certain_of_what_they_dispute():
    """At T = 0 the NLL of every sample is log 2 at most, which few samples may well prefer."""
    labels = torch.arange(60) % 3
    right = 4.0 * torch.eye(3, dtype=torch.float64)[labels]
    wrong = right.clone()
    wrong[:1] = right[:1].roll(1, dims=1)

    assert fit_temperature(torch.stack([right, wrong]), labels).temperature > 0.5


def test_a_model_that_is_always_wrong_ends_at_the_upper_bound():
    assert fit_temperature(torch.eye(5)[None], (torch.arange(5) + 1) % 5) == (HIGHEST, True)


def test_doubt_is_the_cross_entropy_with_labels_that_share_it():
    logits, labels = drawn(5, members=3, samples=40)
    soft = torch.full((40, 5), 0.1 / 4, dtype=torch.float64).scatter_(1, labels[:, None], 0.9)

    expected = -(soft * mixture(logits, 2.0).log()).sum(1).mean()

    assert scaled_nll(logits, labels, 2.0, doubt=0.1) == pytest.approx(float(expected))


@pytest.mark.parametrize("classes", [1, 4])
def test_predictions_that_no_temperature_changes_keep_one(classes):
    assert fit_temperature(torch.zeros(2, 6, classes), torch.zeros(6, dtype=torch.int64)) == (1.0, False)


@pytest.mark.parametrize(
    ("log_probs", "labels", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), "3 non-empty axes"),
        (torch.zeros(1, 0, 3), torch.zeros(0, dtype=torch.int64), "3 non-empty axes"),
        (torch.full((1, 2, 3), math.nan), torch.zeros(2, dtype=torch.int64), "must be finite"),
        (torch.zeros(1, 2, 3), torch.zeros(3, dtype=torch.int64), r"shape \(2,\)"),
        (torch.zeros(1, 2, 3), torch.tensor([0, 3]), "must lie in 0..2"),
    ],
)
def test_what_cannot_be_fitted_is_refused(log_probs, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, labels)
