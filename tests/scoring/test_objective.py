from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydractl.errors import UsageError
from hydractl.scoring.objective import NAMES, TERMS, parse_objective

FACTORS = st.floats(1e-6, 1e6, allow_nan=False)


@st.composite
def sums(draw):
    """Draw terms with factors. All terms differ."""
    names = draw(st.lists(st.sampled_from(list(TERMS)), min_size=1, unique=True))
    return [(name, draw(FACTORS)) for name in names]


def written(terms, *, sign="+"):
    return sign.join(f"{factor!r}*{name}" for name, factor in terms)


@given(sums())
def test_what_is_recorded_reads_back_as_the_same(terms):
    objective = parse_objective(written(terms))

    assert parse_objective(objective.text) == objective
    assert parse_objective(objective.text).text == objective.text


@given(sums(), st.randoms())
def test_the_order_of_terms_does_not_matter(terms, random):
    shuffled = random.sample(terms, len(terms))

    assert parse_objective(written(shuffled)) == parse_objective(written(terms))


@given(sums())
def test_more_is_always_better(terms):
    objective = parse_objective(written(terms))

    assert {t.name: math.copysign(1, t.factor) for t in objective.terms} == {
        name: 1 if TERMS[name].higher_is_better else -1 for name, _ in terms
    }
    assert {t.name: abs(t.factor) for t in objective.terms} == dict(terms)


@given(sums())
def test_spaces_do_not_matter(terms):
    text = written(terms)

    spaced = text.replace("*", " * ").replace("+", "  + ") if "e+" not in text else text

    assert parse_objective(f" {spaced} ") == parse_objective(text)


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("acc", "acc"),
        ("ood", "ood"),
        ("auroc", "ood"),
        ("avg", "avg"),
        ("0.5*acc+0.5*auroc", "avg"),
        ("nll", "-nll"),
        ("-nll", "-nll"),
        ("2*ece", "-2*ece"),
        ("acc-0.1*nll", "acc-0.1*nll"),
        ("acc+0.1*nll", "acc-0.1*nll"),
        ("0.5*acc+0.5*nll", "0.5*acc-0.5*nll"),
        ("-0.25*fpr95+acc", "acc-0.25*fpr95"),
        ("1e-07*nll + 1.0*acc", "acc-1e-07*nll"),
    ],
)
def test_recorded_text(text, recorded):
    assert parse_objective(text).text == recorded


@pytest.mark.parametrize("name", NAMES)
def test_which_need_ood_data(name):
    assert parse_objective(name).needs_ood == (name in {"ood", "auroc", "avg", "fpr95"})
    assert parse_objective("acc+fpr95").needs_ood
    assert not parse_objective("acc+ece").needs_ood


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a metric, found the end"),
        ("  ", "expected a metric, found the end"),
        ("auc", "unknown metric `auc` at character 1"),
        ("acc+auc", "unknown metric `auc` at character 5"),
        ("acc+", "expected a metric, found the end at character 5"),
        ("acc auroc", "expected `\\+` or `-`, found `auroc` at character 5"),
        ("acc+*nll", "expected a metric, found `\\*` at character 5"),
        ("0.5 acc", "expected `\\*` after `0.5`, found `acc` at character 5"),
        ("0.5*", "expected a metric, found the end at character 5"),
        ("0*acc", "`0` must be above 0 and finite at character 1"),
        ("1e999*acc", "`1e999` must be above 0 and finite at character 1"),
        ("acc+0.5*acc", "`acc` appears twice at character 5"),
        ("ood+auroc", "`auroc` appears twice at character 5"),
        ("acc-auroc", "`-auroc` would reward a worse auroc at character 5"),
        ("-acc", "`-acc` would reward a worse acc at character 2"),
        ("avg-nll", "`avg` cannot be part of a sum at character 1"),
        ("acc & nll", "`&` is not allowed at character 5"),
        ("acc--nll", "expected a metric, found `-` at character 5"),
        ("--nll", "expected a metric, found `-` at character 2"),
    ],
)
def test_bad_objectives(text, why):
    with pytest.raises(UsageError, match=f"unknown objective `.*`: {why}") as caught:
        parse_objective(text)

    assert caught.value.hint
