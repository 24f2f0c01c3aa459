"""OOD scores equal independent implementations, and uncertain predictions have higher scores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hydractl.metrics.diversity import mutual_information
from hydractl.metrics.ood_scores import OF_ONE, SCORES, number_name
from hydractl.metrics.per_sample import Responses
from hydractl.metrics.temperature import scale

logits = st.integers(0, 10_000).map(
    lambda seed: 4 * torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
)


def entropy_of(probs):
    return torch.distributions.Categorical(probs=probs).entropy()


@given(logits)
def test_scores_of_an_ensemble(z):
    each = z.softmax(-1)
    mean = each.mean(0)

    found = {name: score.of(z) for name, score in SCORES.items()}

    expected = {
        "msp": -mean.max(-1).values,
        "entropy": entropy_of(mean),
        "mi": entropy_of(mean) - entropy_of(each).mean(0),
        "energy": -torch.stack([member.exp().sum(-1).log() for member in z]).mean(0),
        "max-logit": -((z[0] + z[1] + z[2]) / 3).max(-1).values,
    }
    largest = mean.sort(-1, descending=True).values[..., :100].double()
    expected["gen"] = (largest**0.1 * (1 - largest) ** 0.1).sum(-1).to(mean.dtype)
    expected["msp+mi"] = expected["msp"] + expected["mi"]
    assert found.keys() == expected.keys()
    for name, score in expected.items():
        torch.testing.assert_close(found[name], score)
    assert float(found["mi"].mean()) == pytest.approx(mutual_information(each))


@given(logits)
def test_scores_of_one_model_have_any_axes(z):
    """Scoring of circuits uses two axes: candidates and samples."""
    found = {name: score.of(z.unsqueeze(0)) for name, score in SCORES.items()}

    torch.testing.assert_close(found["msp"], -z.softmax(-1).max(-1).values)
    torch.testing.assert_close(found["entropy"], entropy_of(z.softmax(-1)))
    torch.testing.assert_close(found["energy"], -z.exp().sum(-1).log())
    assert torch.equal(found["max-logit"], -z.max(-1).values)
    assert torch.equal(found["mi"], torch.zeros(3, 6, dtype=z.dtype))  # exactly 0, so that all samples tie


@pytest.mark.parametrize("name", OF_ONE)
def test_scores_grow_with_strangeness(name):
    sure, unsure = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.9, 0.8]])

    assert SCORES[name].of(unsure) > SCORES[name].of(sure)


def test_members_that_disagree_are_strange():
    agree = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])

    assert SCORES["mi"].of(agree.roll(1, 1)) < SCORES["mi"].of(torch.stack([agree[0], agree[0].roll(1)]))


@given(logits, st.sampled_from([0.25, 1.0, 3.0]))
def test_a_temperature_divides_the_logits_of_every_score(z, temperature):
    kept = Responses(z.log_softmax(-1), z.logsumexp(-1))

    scaled = scale(kept, temperature)

    torch.testing.assert_close(scaled.logits(), z / temperature)
    for score in SCORES.values():
        found = score.compute(scaled.logits() if score.raw else scaled.log_probs)
        torch.testing.assert_close(found, score.of(z / temperature))


def test_only_the_first_score_goes_without_saying():
    assert [number_name("auroc", score, ("mi", "msp")) for score in ("mi", "msp")] == ["auroc", "auroc@msp"]
