"""Metrics that only some models have: rerankers, and those of a task.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydractl.manifest.header import Header
from hydractl.metrics.classification import by_query
from hydractl.metrics.compute import answered
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import METRICS, metrics_of, needing
from hydractl.metrics.resampling import MetricEstimate, Resampling
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import calibration_of, span_counts, spans_of
from hydractl.plugins import load


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


def measure_task(
    tested: StoredPredictions,
    labels: Tensor,
    header: Header,
    *,
    metrics: Sequence[str],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return the selected metrics that only models of a task have; none where it has none.

    Args:
        tested: Predictions.
        labels: Shape (N,) or (N, Q), int64, as `data.labels.model_labels` has them.
        header: Says the task, the names of classes and the thresholds of labels.
        metrics: Names from `registry.METRICS`; those of other tasks are skipped.
        resampling: Bootstrap settings, of samples.
    """
    task = header.architecture.task
    chosen = [metric for metric in metrics_of(task) if metric.name in metrics]
    if not chosen or task.measure is None:
        return {}
    estimates: dict[str, MetricEstimate] = load(task.measure)(
        tested, labels, header, metrics=chosen, resampling=resampling
    )
    return estimates


def measure_labels(
    tested: StoredPredictions,
    labels: Tensor,
    header: Header,
    *,
    metrics: Sequence[Metric],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return metrics of which labels are found.

    Args:
        tested: Predictions.
        labels: Shape (N, Q), int64: which labels apply.
        header: Says the probabilities above which each of the Q labels is predicted; 0.5 if it has none.
        metrics: Of `classification.MULTI_LABEL`.
        resampling: Bootstrap settings, of samples.
    """
    log_odds, (samples, number) = answered(tested, labels)["log_odds"], labels.shape
    bounds = torch.tensor(header.label_thresholds or [HALF], dtype=torch.float64).logit()
    sample = {
        "decided": (log_odds.view(labels.shape) > bounds).flatten(),
        "applies": labels.flatten().bool(),
        "log_odds": log_odds,
        "label_number": torch.arange(number).repeat(samples),
    }
    return resampling.values(metrics, sample, labels=number)


def measure_spans(
    tested: StoredPredictions,
    labels: Tensor,
    header: Header,
    *,
    metrics: Sequence[Metric],
    resampling: Resampling,
) -> dict[str, MetricEstimate]:
    """Return metrics of spans of words; none of calibration without a predicted span.

    Args:
        tested: Predictions of words.
        labels: Shape (N, Q), int64, below 0 for words that a text has not.
        header: Says the names of the C classes, which are tags.
        metrics: Of `spans.SPANS`.
        resampling: Bootstrap settings, of texts.
    """
    per_word, (rows, words) = answered(tested, labels), labels.shape
    predicted, true = (
        spans_of(tags.view(labels.shape), header.class_names) for tags in (per_word["predicted"], labels)
    )
    counts = span_counts(predicted, true, rows=rows, words=words)
    correct = counts.pop("span_correct")
    counted = [metric for metric in metrics if metric.bins is None]
    values = resampling.values(counted, counts) if counted else {}
    calibrated = [metric for metric in metrics if metric.bins is not None]
    if not calibrated or not len(correct):
        return values
    sample = calibration_of(per_word["confidence"], predicted, correct, rows=rows, words=words)
    return values | resampling.values(calibrated, sample, labels=len(sample["span_correct"]) // rows)
