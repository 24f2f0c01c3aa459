from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812 - the field's own name

from hydractl.metrics.ood_scores import OF_ONE
from hydractl.scoring.circuit.outcomes import (
    Outcomes,
    objective_values,
    outcomes_from_traits,
    outcomes_of,
    traits_of,
)
from hydractl.scoring.objective import parse_objective

EVERYTHING = parse_objective("acc+ood-nll-ece-fpr95")


def answers(seed, *, candidates=3, samples=20, classes=5):
    source = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(candidates, samples, classes, generator=source, dtype=torch.float64)
    return logits, torch.randint(classes, (samples,), generator=source)


def both(objective, ood_score, seed=0):
    """Return the outcomes, and the outcomes computed from the traits."""
    logits, labels = answers(seed)
    others, _ = answers(seed + 1)
    outcomes, traits = (
        Outcomes(of(logits, labels, objective, ood_score), of(others, None, objective, ood_score))
        for of in (outcomes_of, traits_of)
    )
    return outcomes, outcomes_from_traits(traits, ood_score)


@given(st.integers(0, 10_000), st.sampled_from(OF_ONE))
def test_outcomes_follow_from_traits(seed, ood_score):
    outcomes, found = both(EVERYTHING, ood_score, seed)

    for part, other in zip(outcomes, found, strict=True):
        assert part.keys() == other.keys()
        for name, x in part.items():
            torch.testing.assert_close(other[name].double(), x.double(), atol=1e-5, rtol=1e-5)


def test_nll_is_minus_the_cross_entropy_of_torch():
    logits, labels = answers(3)
    objective = parse_objective("nll")

    values = objective_values(objective, Outcomes(outcomes_of(logits, labels, objective, "msp"), {}))

    assert values.tolist() == pytest.approx(
        [-F.cross_entropy(each, labels).item() for each in logits], abs=1e-12
    )


@given(st.integers(0, 1000))
def test_a_sum_is_the_sum(seed):
    logits, labels = answers(seed)
    others, _ = answers(seed + 1)

    def value(text):
        objective = parse_objective(text)
        return objective_values(
            objective,
            Outcomes(
                outcomes_of(logits, labels, objective, "msp"), outcomes_of(others, None, objective, "msp")
            ),
        )

    torch.testing.assert_close(
        value("0.3*acc-2*nll+ood"), 0.3 * value("acc") + 2 * value("nll") + value("ood"), atol=1e-12, rtol=0
    )
    assert torch.equal(value("0.5*acc+0.5*ood"), value("avg"))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("acc", {"hits"}, set()),
        ("nll", {"nll"}, set()),
        ("ece", {"hits", "confidence"}, set()),
        ("ood", {"score"}, {"score"}),
        ("acc-fpr95", {"hits", "score"}, {"score"}),
    ],
)
@pytest.mark.parametrize("of", [outcomes_of, traits_of])
def test_no_more_is_computed_than_is_read(of, text, inside, outside):
    logits, labels = answers(0)
    objective = parse_objective(text)

    assert set(of(logits, labels, objective, "msp")) == inside
    assert set(of(logits, None, objective, "msp")) == outside


def test_a_tie_goes_to_the_first_class():
    objective = parse_objective("acc")

    assert outcomes_of(torch.zeros(1, 3, 4), torch.tensor([0, 1, 3]), objective, "msp")["hits"].tolist() == [
        [True, False, False]
    ]
