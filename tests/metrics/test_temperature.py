"""Temperature scaling: the effect of T on predictions, and the optimality of the fitted T."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from hydractl.metrics import temperature as module
from hydractl.metrics.per_sample import answers
from hydractl.metrics.temperature import (
    HIGHEST,
    LOWEST,
    FittedTemperature,
    fit_temperature,
    scale_log_probs,
    scaled_nll,
)

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 60), st.integers(1, 6))


def drawn(seed, members=1, samples=300, classes=5, scale=1.0):
    """Return logits and labels with a best temperature of about `scale`."""
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
    """Return the mean of the members' softmaxes."""
    return (logits / temperature).softmax(-1).mean(0)


def posterior(logits, labels, temperature, samples=None):
    """Return the negative log posterior of ln T with the prior N(0, 0.5), computed in NumPy."""
    z = np.asarray(logits, dtype=np.float64) / temperature
    probs = np.exp(z - z.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    of_labels = probs.mean(0)[np.arange(len(labels)), np.asarray(labels)]
    return -(samples or len(labels)) * np.log(of_labels).mean() + 2 * np.log(temperature) ** 2


def reference(logits, labels, **preprocess):
    """Return the minimum of `posterior` by Nelder and Mead's search from ten starts."""
    runs = [
        minimize(lambda x: posterior(logits, labels, np.exp(x[0]), **preprocess), [start], method="Nelder-Mead",
                 bounds=[(np.log(LOWEST), np.log(HIGHEST))], options={"xatol": 1e-9, "fatol": 1e-12})
        for start in np.linspace(-2.9, 2.9, 10)
    ]  # fmt: skip
    best = min(runs, key=lambda run: run.fun)
    return float(np.exp(best.x[0])), float(best.fun)


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


@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([1, 9, 60]))
@settings(max_examples=20)
def test_the_posterior_is_greatest(seed, members, scale, samples):
    logits, labels = drawn(seed, members, samples=samples, scale=scale)
    logits = single(logits)

    found = fit_temperature(logits, labels).temperature
    best, cost = reference(logits, labels)

    assert posterior(logits, labels, found) <= cost + 1e-9
    assert found == pytest.approx(best, rel=1e-5)


@given(st.integers(0, 9999), st.integers(1, 3))
@settings(max_examples=4)
def test_of_many_samples_the_nll_alone_decides(seed, members):
    logits, labels = drawn(seed, members, samples=20_000, scale=2.5)
    logits = single(logits)

    found, plain = (fit_temperature(logits, labels, deviation=d).temperature for d in (0.5, math.inf))

    assert found == pytest.approx(plain, rel=1e-3)
    for other in (0.999 * plain, 1.001 * plain):
        assert scaled_nll(logits, labels, plain) <= scaled_nll(logits, labels, other)


@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([0.3, 3.0]))
@settings(max_examples=15)
def test_samples_that_are_repeated_leave_less_to_the_prior(seed, members, scale):
    """Repeated samples keep the NLL and reduce the weight of the prior: T moves to the NLL's minimum."""
    logits, labels = drawn(seed, members, samples=30, scale=scale)
    logits = single(logits)

    fitted = [fit_temperature(logits.repeat(1, k, 1), labels.repeat(k)).temperature for k in (1, 4, 16)]
    plain = fit_temperature(logits, labels, deviation=math.inf).temperature

    distances = [abs(math.log(t)) for t in (*fitted, plain)]
    assert distances == sorted(distances)
    assert fitted[1] == pytest.approx(reference(logits, labels, samples=120)[0], rel=1e-5)


@given(st.integers(0, 9999), st.integers(1, 3), st.floats(0.3, 3))
@settings(max_examples=10)
def test_on_top_of_a_stored_temperature_the_product_is_what_it_is_without(seed, members, stored):
    logits, labels = drawn(seed, members, samples=30, scale=2)
    logits = single(logits)

    plain = fit_temperature(logits, labels).temperature
    on_top = fit_temperature((logits / stored).log_softmax(-1), labels, stored=stored).temperature

    assert stored * on_top == pytest.approx(plain, rel=1e-5)


@given(st.integers(0, 9999), st.integers(1, 3), st.sampled_from([2.0, 3.0]))
@settings(max_examples=15)
def test_without_a_prior_logits_times_three_have_three_times_the_temperature(seed, members, factor):
    logits, labels = drawn(seed, members)
    logits = single(logits)

    before, after = (
        fit_temperature(x.log_softmax(-1), labels, deviation=math.inf) for x in (logits, factor * logits)
    )

    assert not before.at_bound
    assert after.temperature == pytest.approx(factor * before.temperature, rel=1e-5)


def test_the_temperature_that_labels_were_drawn_at_is_found():
    logits, labels = drawn(0, samples=20_000, scale=2.5)

    assert fit_temperature(single(logits), labels).temperature == pytest.approx(2.5, rel=0.05)


@given(st.integers(0, 9999), SHAPES, st.floats(0.01, 30))
@settings(max_examples=30)
def test_neither_the_posterior_nor_the_nll_is_ever_worse_than_without(seed, shape, scale):
    source = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(shape, generator=source)).log_softmax(-1)
    labels = torch.randint(shape[2], shape[1:2], generator=source)

    found = fit_temperature(logits, labels).temperature

    assert LOWEST <= found <= HIGHEST
    own, one = (scaled_nll(logits, labels, t) for t in (found, 1.0))
    assert shape[1] * own + 2 * math.log(found) ** 2 <= shape[1] * one


def test_at_the_minimum_the_derivative_is_zero():
    """For one model dNLL/dlnT is the mean of label logit minus expected logit; the prior adds 4 ln T / N."""
    logits, labels = drawn(3)

    temperature = fit_temperature(single(logits), labels).temperature
    scaled = logits / temperature
    expected = (scaled.softmax(1) * scaled).sum(1)
    slope = float((scaled.gather(1, labels[:, None])[:, 0] - expected).mean())

    assert slope + 4 * math.log(temperature) / len(labels) == pytest.approx(0, abs=1e-6)


def test_equal_members_have_the_temperature_of_one():
    logits, labels = drawn(4)

    one, three = (fit_temperature(single(logits).expand(n, -1, -1), labels) for n in (1, 3))

    assert one.temperature == pytest.approx(three.temperature, rel=1e-5)


@given(st.integers(1, 60), st.integers(2, 6), st.floats(0.5, 5))
@settings(max_examples=10)
def test_a_model_that_is_always_right_is_not_made_certain(samples, classes, scale):
    """Without a prior the fit ends at the lower bound, for any number of samples."""
    labels = torch.arange(samples) % classes
    logits = scale * torch.eye(classes, dtype=torch.float64)[labels][None]

    assert fit_temperature(logits, labels, deviation=math.inf).temperature < 0.1
    assert fit_temperature(logits, labels).temperature == pytest.approx(
        reference(logits, labels)[0], rel=1e-5
    )
    assert fit_temperature(logits, labels).temperature > 0.09


def test_members_of_whom_one_is_always_right_are_not_made_certain_of_what_they_dispute():
    """At T = 0 the NLL of every sample is at most log 2, which a fit without prior could prefer."""
    labels = torch.arange(60) % 3
    right = 4.0 * torch.eye(3, dtype=torch.float64)[labels]
    wrong = right.clone()
    wrong[:1] = right[:1].roll(1, dims=1)

    assert fit_temperature(torch.stack([right, wrong]), labels).temperature > 0.5


@pytest.mark.parametrize(("scale", "bound"), [(1000, HIGHEST), (0.001, LOWEST)])
def test_logits_of_an_unusual_scale_end_at_a_bound(scale, bound):
    logits, labels = drawn(0, samples=5000, scale=scale)

    assert fit_temperature(single(logits), labels) == FittedTemperature(bound, at_bound=True)


@pytest.mark.parametrize("classes", [1, 4])
def test_predictions_that_no_temperature_changes_keep_one(classes):
    assert fit_temperature(
        torch.zeros(2, 6, classes), torch.zeros(6, dtype=torch.int64)
    ) == FittedTemperature(1.0, at_bound=False)


@pytest.mark.parametrize(
    ("log_probs", "labels", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), "3 non-empty axes"),
        (torch.zeros(1, 0, 3), torch.zeros(0, dtype=torch.int64), "3 non-empty axes"),
        (torch.full((1, 2, 3), math.nan), torch.zeros(2, dtype=torch.int64), "must be finite"),
        (torch.zeros(1, 2, 3), torch.zeros(3, dtype=torch.int64), r"shape \(2,\)"),
        (torch.zeros(1, 2, 3), torch.tensor([0, 3]), "must be in 0..2"),
    ],
)
def test_what_cannot_be_fitted_is_refused(log_probs, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(log_probs, labels)
