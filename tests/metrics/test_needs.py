from __future__ import annotations

import pytest

from hydractl.errors import UsageError
from hydractl.metrics.definitions import METRICS
from hydractl.metrics.needs import ALL, check_metric


def test_every_metric_that_is_measured_has_a_definition():
    assert {*ALL} == {*METRICS}


@pytest.mark.parametrize("name", ALL)
def test_a_known_name_is_accepted(name):
    check_metric(name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("spoil", [str.upper, lambda n: n.replace("_", "-").title(), lambda n: f"{n}z"])
def test_a_name_that_is_nearly_right_is_corrected(name, spoil):
    if spoil(name) in ALL:
        return
    with pytest.raises(UsageError) as caught:
        check_metric(spoil(name))
    assert f"did you mean `{name}`?" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("acc", "accuracy"),
        ("aECE", "adaptive_ece"),
        ("par", "parameters"),
        ("brir", "brier"),
        ("latency", "latency_ms"),
    ],
)
def test_short_forms_and_headings_are_understood(typed, meant):
    with pytest.raises(UsageError, match=f"unknown metric `{typed}`") as caught:
        check_metric(typed)
    assert caught.value.hint.startswith(f"did you mean `{meant}`? Known metrics: accuracy, brier, ")


@pytest.mark.parametrize("typed", ["", "qqqq"])
def test_a_name_like_no_other_gets_the_list(typed):
    with pytest.raises(UsageError) as caught:
        check_metric(typed)
    assert caught.value.hint == f"Known metrics: {', '.join(ALL)}"
