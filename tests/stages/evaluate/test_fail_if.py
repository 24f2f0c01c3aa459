"""`--fail-if`: grammar, refused conditions, results."""

from __future__ import annotations

import pytest

from hydractl.errors import UsageError
from hydractl.evaluation.options import Condition
from hydractl.manifest.document import Value
from hydractl.manifest.report import Row
from hydractl.metrics.registry import METRICS

SCOPES = ("birds", "noise", "near", "far", "all")
ROW = Row(
    name="m",
    models=(),
    members=3,
    values={"ece": Value(value=0.02), "parameters": Value(value=1000.0), "disagreement": Value(value=0.1)},
    ood={"birds": {"auroc": Value(value=0.8)}, "noise": {"auroc": Value(value=0.9)}},
    means={"near": {"auroc": 0.8}, "far": {"auroc": 0.9}, "all": {"auroc": 0.85}},
)


@pytest.mark.parametrize(
    ("text", "metric", "scope", "comparison", "bound"),
    [
        ("ece>0.02", "ece", None, ">", 0.02),
        (" ece >= 2e-2 ", "ece", None, ">=", 0.02),
        ("auroc[near]<0.9", "auroc", "near", "<", 0.9),
        ("fpr95[ Tiny ImageNet ] <= 1", "fpr95", "Tiny ImageNet", "<=", 1.0),
        ("parameters>1e9", "parameters", None, ">", 1e9),
        ("acc<95%", "accuracy", None, "<", 0.95),
        ("ood[near]<99.9%", "auroc", "near", "<", 0.999),
        ("acc[fog:3]<60%", "accuracy", "fog:3", "<", 0.6),
    ],
)
def test_what_a_condition_says(text, metric, scope, comparison, bound):
    found = Condition.parse(text)

    assert found == Condition(metric=metric, scope=scope, comparison=comparison, bound=bound)
    assert Condition.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected METRIC"),
        ("ece", "expected METRIC"),
        ("ece=0.2", "expected METRIC"),
        ("ece==0.2", "expected METRIC"),
        ("ece>", "expected METRIC"),
        ("ece>much", "`much` is not a number"),
        ("ece>>0.1", "`>0.1` is not a number"),
        ("auroc[near<0.9", "expected METRIC"),
        ("0.1<ece<0.2", "unknown metric `0`|expected METRIC|is not a number"),
        ("eec>0.1", "unknown metric `eec`"),
        ("accuracy<95", "is between 0 and 1, so this condition always holds"),
        ("nll>nan", "this condition never holds"),
        ("nll>inf", "this condition never holds"),
        ("nll<inf", "this condition always holds"),
        ("ece>-0.1", "is between 0 and 1, so this condition always holds"),
        ("ece<-0.1", "this condition never holds"),
        ("accuracy<1.1", "this condition always holds"),
        ("accuracy>=1.1", "this condition never holds"),
    ],
)
def test_malformed_conditions_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        Condition.parse(text)


def test_a_percentage_is_explained():
    with pytest.raises(UsageError) as caught:
        Condition.parse("accuracy<95")

    assert caught.value.hint == "write 95 % as 0.95 or 95%"


@pytest.mark.parametrize(
    ("text", "metrics", "scopes", "message"),
    [
        ("ece>0.1", ("accuracy",), (), "ece is not among the selected metrics"),
        ("auroc[near]<0.1", ("ece",), (), "needs an OOD data set"),
        ("latency_ms>3", ("ece",), SCOPES, "is not measured"),
        ("auroc<0.1", tuple(METRICS), SCOPES, "auroc needs the name of an OOD data set"),
        ("ece[near]<0.1", tuple(METRICS), SCOPES, "ece is not measured on OOD data"),
        ("auroc[bird]<0.1", tuple(METRICS), SCOPES, "no OOD data set or group `bird`"),
        ("disagreement[near]<0.1", tuple(METRICS), (), "no OOD data set or group `near`"),
    ],
)
def test_conditions_on_what_is_not_measured_are_refused(text, metrics, scopes, message):
    with pytest.raises(UsageError, match=message):
        Condition.parse(text).check_measured(metrics, scopes)


def test_only_a_share_has_a_bound_in_percent():
    with pytest.raises(UsageError, match="nll is not a fraction"):
        Condition.parse("nll<95%")


@pytest.mark.parametrize(
    ("text", "failed", "found"),
    [
        ("ece>0.02", False, 0.02),
        ("ece>=0.02", True, 0.02),
        ("ece<0.02", False, 0.02),
        ("ece<=0.02", True, 0.02),
        ("ece>0.0199", True, 0.02),
        ("auroc[birds]<0.85", True, 0.8),
        ("auroc[near]<0.85", True, 0.8),
        ("auroc[far]<0.85", False, 0.9),
        ("auroc[all]<0.85", False, 0.85),
        ("disagreement>0.05", True, 0.1),
        ("parameters>999", True, 1000.0),
    ],
)
def test_what_comes_of_a_condition(text, failed, found):
    condition = Condition.parse(text)
    condition.check_measured(tuple(METRICS), SCOPES)

    check = condition.check(ROW)

    assert (check.condition, check.failed) == (text, failed)
    assert check.found == pytest.approx(found, abs=1e-15)
