"""All that is measured of a row's predictions: `compute.measure`, and what only some models have: rerankers, and those of a task.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl.manifest.header import Header
from hydractl.manifest.temperature import Temperature
from hydractl.metrics.classification import by_query
from hydractl.metrics.compute import RowNumbers, answered, measure, question_scores, rank
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import StoredPredictions, at_once, mean_probabilities, most_probable
from hydractl.metrics.registry import METRICS, metrics_of, needing
from hydractl.metrics.resampling import MetricEstimate, Resampling
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import Spans, entity_probability, filled_up, lowest, span_counts, spans_of
from hydractl.metrics.temperature import Scaled, fit_label_temperatures, fit_temperature
from hydractl.plugins import load
from hydractl.tasks import Task

CERTAIN = 1e-12
"""Distance from 0 and 1 of the probabilities that a temperature is fitted on."""


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


def label_scale(
    predictions: StoredPredictions, labels: Tensor, temperature: float, header: Header, stored: Temperature
) -> Temperature:
    """Return a temperature with those of labels, see `fit_label_temperatures`; neither the header nor what is stored is read."""
    del header, stored
    return Temperature(temperature, fit_label_temperatures(predictions, labels, temperature))


def entity_scale(
    predictions: StoredPredictions, labels: Tensor, temperature: float, header: Header, stored: Temperature
) -> Temperature:
    """Return a temperature with that of entities, as `fit_temperature` finds it: each predicted span is a sample of two classes.

    The lowest of several words' probabilities is another quantity than a word's, and most words are in no entity. Without a predicted
    span it is the stored one.

    Args:
        predictions: Of words, of logits that are divided by `stored`.
        labels: Shape (N, Q), as for `measure_spans`.
        temperature: Of words, on top of `stored`.
        header: Says the names of the C classes, which are tags.
        stored: The temperature of entities is no factor, but replaced.
    """
    predicted = predicted_spans(Scaled(predictions, temperature), labels, header)
    if not len(predicted.correct):
        return Temperature(temperature, of_entities=stored.of_entities)
    share = predicted.confidence.clamp(CERTAIN, 1 - CERTAIN)
    log_probs = torch.stack([1 - share, share], -1).log().unsqueeze(0)
    fitted = fit_temperature(log_probs, predicted.correct.long())
    return Temperature(temperature, of_entities=fitted.temperature)


class PredictedSpans(NamedTuple):
    """Spans of predicted tags beside those of labels.

    Attributes:
        spans: The predicted ones, E.
        counts: How many each text has, and how many are found, each (N,); see `span_counts`.
        correct: Which predicted ones are true, (E,), boolean.
        confidence: The lowest probability of the predicted tag among their words, (E,), float64.
    """

    spans: Spans
    counts: dict[str, Tensor]
    correct: Tensor
    confidence: Tensor


def predicted_spans(tested: StoredPredictions, labels: Tensor, header: Header) -> PredictedSpans:
    """Return the spans of predictions of words, labels (N, Q)."""
    per_word, (rows, words) = answered(tested, labels), labels.shape
    predicted, true = (
        spans_of(tags.view(labels.shape), header.class_names) for tags in (per_word["predicted"], labels)
    )
    counts = span_counts(predicted, true, rows=rows, words=words)
    correct = counts.pop("span_correct")
    confidence = lowest(per_word["confidence"], predicted.word_numbers(rows, words), len(correct))
    return PredictedSpans(predicted, counts, correct, confidence)


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
        header: Says the names of the C classes, which are tags, and the temperature of entities.
        metrics: Of `spans.SPANS`.
        resampling: Bootstrap settings, of texts.
    """
    spans, counts, correct, confidence = predicted_spans(tested, labels, header)
    counted = [metric for metric in metrics if metric.bins is None]
    values = resampling.values(counted, counts) if counted else {}
    calibrated = [metric for metric in metrics if metric.bins is not None]
    if not calibrated or not len(correct):
        return values
    per_text = spans.rows.bincount(minlength=len(labels))
    width = int(per_text.max())
    by_name = {
        "span_confidence": entity_probability(confidence, header.entity_temperature),
        "span_correct": correct.double(),
    }
    sample = {name: filled_up(x, per_text, width, math.nan) for name, x in by_name.items()}
    return values | resampling.values(calibrated, sample, labels=width)


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
