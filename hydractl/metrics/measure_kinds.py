"""Metrics that only models of a kind have: rerankers, and those that answer several labels or each word.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydractl.manifest.header import Header
from hydractl.metrics.classification import by_query
from hydractl.metrics.compute import answered
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import METRICS, needing
from hydractl.metrics.resampling import MetricEstimate, Resampling
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import calibration_of, span_counts, spans_of


def measure_order(
    tested: StoredPredictions,
    labels: Tensor,
    queries: Tensor,
    *,
    metrics: Sequence[str],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return the selected metrics of the order that a reranker gives passages; none if no passage is relevant.

    Args:
        tested: Predictions on pairs of a query and a passage, of two classes.
        labels: Shape (N,), int64: 1 for a relevant passage.
        queries: Shape (N,), int64: the query of each pair, from 0.
        metrics: Names from `registry.METRICS`; others than those of queries are skipped.
        resampling: Bootstrap settings, of queries.
    """
    chosen = [METRICS[name] for name in needing(metrics, MetricNeeds.QUERIES)]
    if not chosen or not bool((labels == 1).any()):
        return {}
    return resampling.values(chosen, by_query(answered(tested, labels)["log_odds"], labels == 1, queries))


def measure_kind(
    tested: StoredPredictions,
    labels: Tensor,
    header: Header,
    *,
    metrics: Sequence[str],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return the selected metrics that only models of a kind have: `measure_labels`, `measure_spans`, or none.

    Args:
        tested: Predictions.
        labels: As there.
        header: Says the kind, the names of classes and the thresholds of labels.
        metrics: As there.
        resampling: As there.
    """
    if header.architecture.is_multi_label:
        thresholds = header.label_thresholds
        return measure_labels(tested, labels, thresholds, metrics=metrics, resampling=resampling)
    if header.architecture.is_token_classifier:
        return measure_spans(tested, labels, header.class_names, metrics=metrics, resampling=resampling)
    return {}


def measure_labels(
    tested: StoredPredictions,
    labels: Tensor,
    thresholds: Sequence[float],
    *,
    metrics: Sequence[str],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return the selected metrics of which labels are found.

    Args:
        tested: Predictions.
        labels: Shape (N, Q), int64: which labels apply.
        thresholds: Probabilities above which each of the Q labels is predicted; 0.5 if empty.
        metrics: Names from `registry.METRICS`; others than those of label sets are skipped.
        resampling: Bootstrap settings, of samples.
    """
    chosen = [METRICS[name] for name in needing(metrics, MetricNeeds.LABEL_SETS)]
    if not chosen:
        return {}
    log_odds, (samples, number) = answered(tested, labels)["log_odds"], labels.shape
    bounds = torch.tensor(thresholds or [HALF], dtype=torch.float64).logit()
    sample = {
        "decided": (log_odds.view(labels.shape) > bounds).flatten(),
        "applies": labels.flatten().bool(),
        "log_odds": log_odds,
        "label_number": torch.arange(number).repeat(samples),
    }
    return resampling.values(chosen, sample, labels=number)


def measure_spans(
    tested: StoredPredictions,
    labels: Tensor,
    names: Sequence[str],
    *,
    metrics: Sequence[str],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return the selected metrics of spans of words.

    Args:
        tested: Predictions of words.
        labels: Shape (N, Q), int64, below 0 for words that a text has not.
        names: Of the C classes, which are tags.
        metrics: Names from `registry.METRICS`; others than those of spans are skipped.
        resampling: Bootstrap settings, of texts.
    """
    chosen = [METRICS[name] for name in needing(metrics, MetricNeeds.SPANS)]
    if not chosen:
        return {}
    per_word, (rows, words) = answered(tested, labels), labels.shape
    predicted, true = (spans_of(tags.view(labels.shape), names) for tags in (per_word["predicted"], labels))
    counts = span_counts(predicted, true, rows=rows, words=words)
    correct = counts.pop("span_correct")
    counted = [metric for metric in chosen if metric.bins is None]
    values = resampling.values(counted, counts) if counted else {}
    calibrated = [metric for metric in chosen if metric.bins is not None]
    if not calibrated or not len(correct):
        return values
    sample = calibration_of(per_word["confidence"], predicted, correct, rows=rows, words=words)
    return values | resampling.values(calibrated, sample, labels=len(sample["span_correct"]) // rows)
