"""All that is measured of a row's predictions: `compute.measure`, and what only some models have: rerankers, and those of a task.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.manifest.header import Header
from hydractl.metrics.classification import by_query
from hydractl.metrics.compute import RowNumbers, answered, measure, question_scores, rank
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import StoredPredictions, at_once, mean_probabilities, most_probable
from hydractl.metrics.registry import METRICS, metrics_of, needing
from hydractl.metrics.resampling import MetricEstimate, Resampling
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import calibration_of, lowest, span_counts, spans_of
from hydractl.plugins import load
from hydractl.tasks import Task


class Selection(NamedTuple):
    """What is measured, as `compute.measure` takes it."""

    metrics: Sequence[str]
    scores: Sequence[str]
    resampling: Resampling

    def of_task(self, task: Task, needs: MetricNeeds) -> list[Metric]:
        """Return the selected metrics that only models of a task have."""
        return [m for m in metrics_of(task) if m.name in self.metrics and m.needs is needs]


def measure_all(
    tested: StoredPredictions,
    labels: Tensor,
    foreign: Mapping[str, StoredPredictions],
    header: Header,
    selection: Selection,
    *,
    queries: Tensor | None = None,
) -> RowNumbers:
    """Return all selected metrics that can be computed from predictions: those of `compute.measure`, of the task, and of rerankers.

    Args:
        tested: Predictions on the ID set.
        labels: Shape (N,) or (N, Q), int64, as `data.labels.model_labels` has them.
        foreign: Predictions on each OOD set.
        header: Says the task, the names of classes and the thresholds of labels.
        selection: What is measured; metrics of other tasks are skipped.
        queries: Shape (N,), int64: the query of each pair, from 0; None if the model is no reranker.
    """
    numbers = measure(tested, labels, foreign, **selection._asdict())
    task, id_set, ood_sets = header.architecture.task, dict(numbers.id_set), dict(numbers.ood_sets)
    if (metrics := selection.of_task(task, MetricNeeds.TASK)) and task.measure is not None:
        id_set |= load(task.measure)(tested, labels, header, metrics=metrics, resampling=selection.resampling)
    if queries is not None:
        id_set |= measure_order(tested, labels, queries, selection)
    if foreign and (metrics := selection.of_task(task, MetricNeeds.OOD)) and task.scores is not None:
        (inside, inside_counts), *outside = (
            load(task.scores)(predictions, header, selection.scores)
            for predictions in (tested, *foreign.values())
        )
        for name, (by_score, counts) in zip(foreign, outside, strict=True):
            if inside_counts.any() and counts.any():
                per_text = (inside_counts, counts)
                ranked = rank(inside, by_score, metrics, selection.resampling, name=name, counts=per_text)
                ood_sets[name] = ood_sets[name] | ranked
    return replace(numbers, id_set=id_set, ood_sets=ood_sets)


def measure_order(
    tested: StoredPredictions, labels: Tensor, queries: Tensor, selection: Selection
) -> dict[str, MetricEstimate]:
    """Return the selected metrics of the order that a reranker gives passages; none if no passage is relevant.

    Args:
        tested: Predictions on pairs of a query and a passage, of two classes.
        labels: Shape (N,), int64: 1 for a relevant passage.
        queries: Shape (N,), int64: the query of each pair, from 0.
        selection: What is measured; intervals resample queries.
    """
    chosen = [METRICS[name] for name in needing(selection.metrics, MetricNeeds.QUERIES)]
    if not chosen or not bool((labels == 1).any()):
        return {}
    per_query = by_query(answered(tested, labels)["log_odds"], labels == 1, queries)
    return selection.resampling.values(chosen, per_query)


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


def span_scores(
    predictions: StoredPredictions, header: Header, scores: Sequence[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return OOD scores of each predicted span, (E,), float64, by name, and how many spans each text has, (N,).

    The score of a span is the highest of its words.

    Args:
        predictions: Of words.
        header: Says the names of the C classes, which are tags.
        scores: Names from `ood_scores.SCORES`.
    """
    parts: dict[str, list[Tensor]] = {score: [] for score in scores}
    counts = []
    for part in predictions.split(at_once(predictions)):
        tags = most_probable(mean_probabilities(part))
        spans = spans_of(tags, header.class_names)
        numbers = spans.word_numbers(*tags.shape)
        counts.append(spans.rows.bincount(minlength=len(tags)))
        for score in scores:
            by_word = question_scores(part, SCORES[score]).flatten()
            parts[score].append(-lowest(-by_word, numbers, len(spans.rows)))
    return {score: torch.cat(scores_of_parts) for score, scores_of_parts in parts.items()}, torch.cat(counts)
