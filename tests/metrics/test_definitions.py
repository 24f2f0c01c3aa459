"""The table of definitions: read-only, keyed by name, one sentence each."""

from __future__ import annotations

import pytest

from hydractl.metrics.definitions import METRICS, Metric, _by_name


def test_every_entry_is_found_under_its_own_name():
    assert all(name == metric.name for name, metric in METRICS.items())
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_entry_is_one_sentence_with_a_range(metric):
    assert metric.low < metric.high
    assert metric.definition.endswith(".")
    assert metric.definition[0].isupper()


def test_the_table_is_read_only():
    with pytest.raises(TypeError):
        METRICS["accuracy"] = None


def test_two_metrics_of_one_name_are_refused():
    one = Metric(name="x", label="X", higher_is_better=True, definition="It is x.")

    with pytest.raises(ValueError, match="share a name"):
        _by_name(one, one)
