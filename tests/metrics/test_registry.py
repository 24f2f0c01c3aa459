"""The registry of metrics: read-only, keyed by name, one sentence per definition."""

from __future__ import annotations

import pytest

from hydractl.errors import UsageError
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.registry import ALIASES, METRICS, by_name, choose_metrics, metric_named
from hydractl.scoring.objective import TERMS, parse_objective


def test_every_entry_is_found_under_its_own_name():
    assert all(name == metric.name == metric_named(name).name for name, metric in METRICS.items())
    columns = [metric.column for metric in METRICS.values() if metric.column is not None]
    assert len({*columns}) == len(columns)


def test_every_entry_is_one_sentence_with_a_range():
    for name, metric in METRICS.items():
        assert metric.low < metric.high, name
        assert metric.definition.endswith("."), name
        assert metric.definition[0].isupper(), name


def test_the_table_is_read_only():
    with pytest.raises(TypeError):
        METRICS["accuracy"] = None


def test_two_metrics_of_one_name_are_refused():
    one = Metric(name="x", needs=MetricNeeds.LABELS, definition="It is x.")

    with pytest.raises(ValueError, match="two metrics have the same name"):
        by_name(one, one)


def test_what_is_measured_elsewhere_does_not_follow_from_predictions():
    with pytest.raises(ValueError, match="`macs` cannot be computed from predictions"):
        METRICS["macs"].of({})


@pytest.mark.parametrize(("name", "metric"), ALIASES.items())
def test_a_metric_is_read_by_what_it_is_called_too(name, metric):
    assert name not in METRICS
    assert metric_named(name) is METRICS[metric]
    assert choose_metrics([name], ood=True, latency=False) == (metric,)


def test_one_vocabulary_for_metrics_and_objectives():
    for name in ("acc", "accuracy", "ood", "auroc", "nll", "ece", "fpr95"):
        assert TERMS[parse_objective(name).terms[0].name] is metric_named(name)


@pytest.mark.parametrize("spoil", [str.upper, lambda n: n.replace("_", "-").title(), lambda n: f"{n}z"])
def test_a_name_that_is_nearly_right_is_corrected(spoil):
    for name in [name for name in METRICS if spoil(name) not in METRICS]:
        with pytest.raises(UsageError) as caught:
            metric_named(spoil(name))
        assert f"did you mean `{name}`?" in caught.value.hint


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("accu", "accuracy"),
        ("aECE", "adaptive_ece"),
        ("par", "parameters"),
        ("brir", "brier"),
        ("latency", "latency_ms"),
    ],
)
def test_short_forms_and_headings_are_understood(typed, meant):
    with pytest.raises(UsageError, match=f"unknown metric `{typed}`") as caught:
        metric_named(typed)
    assert caught.value.hint == f"did you mean `{meant}`? `hydractl eval --help --all` lists all metrics"


@pytest.mark.parametrize("typed", ["", "qqqq"])
def test_the_hint_for_a_name_like_no_other_is_the_command_with_the_list(typed):
    with pytest.raises(UsageError) as caught:
        metric_named(typed)
    assert caught.value.hint == "`hydractl eval --help --all` lists all metrics"
