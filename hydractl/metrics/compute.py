"""Values of a report, computed from the members' predictions.

`measure_all` returns the values of any task, `measure` the values of single-label classification. All
functions are pure functions of tensors and names.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from hydractl.manifest.document import Value
from hydractl.manifest.header import Header
from hydractl.manifest.report import Difference
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.metrics.classification import RISK_COVERAGE, by_query
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.ood_ranking import RANKING
from hydractl.metrics.ood_scores import MSP, SCORES, Score, number_name
from hydractl.metrics.per_sample import (
    Responses,
    StoredPredictions,
    answers,
    at_once,
    certainty_ranks,
    ensemble_log_probs,
    mean_probabilities,
    most_probable,
    of_samples,
    places,
)
from hydractl.metrics.registry import METRICS, metrics_of, needing
from hydractl.metrics.resampling import MetricEstimate, Resampling, mean_of
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import Spans, entity_probability, filled_up, lowest, span_counts, spans_of
from hydractl.metrics.temperature import Scaled, fit_label_temperatures, fit_temperature
from hydractl.plugins import load
from hydractl.tasks import Task

Estimates = Mapping[str, MetricEstimate]
"""Estimates by metric name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowNumbers:
    """Values of a row except costs.

    Attributes:
        id_set: Estimates on the ID set.
        ood_sets: Estimates on each OOD set.
        groups: Names of the OOD sets in each group, by group: `all`, `near` and `far`. Each group has a mean.
    """

    id_set: dict[str, MetricEstimate]
    ood_sets: dict[str, dict[str, MetricEstimate]]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Value]:
        """Values on the ID set, as in `manifest.report.Row`."""
        return _to_values(self.id_set)

    @property
    def ood(self) -> dict[str, dict[str, Value]]:
        """Values on each OOD set, as in `manifest.report.Row`."""
        return {name: _to_values(estimates) for name, estimates in self.ood_sets.items()}

    @property
    def mean_intervals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """Ends of the interval of each metric's mean over a non-empty group, by group and metric."""
        return interval_ends(self._means())

    def difference(self, other_row: RowNumbers) -> Difference | None:
        """Return this row's values minus those of another row, or `None` if no metric has an interval.

        Both rows must be measured on the same samples.
        """
        values = _difference(self.id_set, other_row.id_set)
        ood = differences(self.ood_sets, other_row.ood_sets)
        if not (values or any(ood.values())):
            return None
        means = differences(self._means(), other_row._means())
        return Difference(values=values, ood=ood, means=means)

    def _means(self) -> dict[str, dict[str, MetricEstimate]]:
        return group_means(self.ood_sets, self.groups)


_Place = TypeVar("_Place", str, tuple[str, str])


def group_means(
    estimates: Mapping[_Place, Estimates], groups: Mapping[str, Sequence[_Place]]
) -> dict[str, dict[str, MetricEstimate]]:
    """Return the unweighted mean of every estimate over each non-empty group.

    Estimates that a data set of the group lacks are left out.
    """
    return {
        group: {
            metric: mean_of([estimates[place][metric] for place in places])
            for metric in _common([estimates[place] for place in places])
        }
        for group, places in groups.items()
        if places
    }


def _common(several: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the metrics present in all data sets, in the order of the first data set."""
    return [metric for metric in several[0] if all(metric in estimates for estimates in several)]


def _to_values(estimates: Estimates) -> dict[str, Value]:
    return {metric: estimate.to_value() for metric, estimate in estimates.items()}


def interval_ends(means: Mapping[str, Estimates]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the ends of all intervals by group and metric, without values that have no interval."""
    intervals = {
        group: {
            metric: (v.low, v.high)
            for metric, v in _to_values(estimates).items()
            if v.low is not None and v.high is not None
        }
        for group, estimates in means.items()
    }
    return {group: by_metric for group, by_metric in intervals.items() if by_metric}


def _difference(estimates: Estimates, others: Estimates) -> dict[str, Value]:
    gaps = {name: estimate.difference(others[name]) for name, estimate in estimates.items() if name in others}
    return {name: gap.to_value() for name, gap in gaps.items() if gap is not None}


def differences(
    estimates: Mapping[str, Estimates], others: Mapping[str, Estimates]
) -> dict[str, dict[str, Value]]:
    """Return the differences of all values with intervals in both rows, by data set or group."""
    return {
        name: _difference(by_metric, others[name]) for name, by_metric in estimates.items() if name in others
    }


def measure(
    id_predictions: StoredPredictions,
    labels: Tensor | None,
    ood_predictions: Mapping[str, StoredPredictions],
    *,
    metrics: Sequence[str],
    scores: Sequence[str],
    resampling: Resampling,
) -> RowNumbers:
    """Return all selected metrics of a model or an ensemble that can be computed from predictions.

    Predictions may be stored on disk. They are read once, and once more for each OOD score of answers except
    `msp`. Only a few values per sample are in memory.

    Args:
        id_predictions: Predictions on the ID set.
        labels: Shape (N,), int64, in 0..C-1; (N, Q) for models with Q labels or words. `None` if no metric
            needs labels.
        ood_predictions: Predictions on each OOD set.
        metrics: Names in `registry.METRICS`. Metrics that need other inputs are skipped.
        scores: Names in `ood_scores.EVERY`, the scores of OOD metrics. Feature-based scores are stored with
            the predictions. `number_name` gives the names of the metrics.
        resampling: Bootstrap settings. Every score uses the same resamples.
    """
    labelled, diverse = (
        [METRICS[name] for name in needing(metrics, needs)]
        for needs in (MetricNeeds.LABELS, MetricNeeds.MEMBERS)
    )
    ranking = [metric for metric in RANKING if metric.name in metrics]
    named = scores if ranking and ood_predictions else ()
    ranks = [SCORES[score] for score in named if score in SCORES]
    answers_by_name, id_scores, id_set = _summary(id_predictions, ranks, diverse, labels)
    ood_sets: dict[str, dict[str, MetricEstimate]] = {}
    for name, predictions in ood_predictions.items():
        _, set_scores, ood_set = _summary(predictions, ranks, diverse)
        inside, outside = (
            {score: by_score[score] for score in named} for by_score in (id_scores, set_scores)
        )
        ood_sets[name] = rank(inside, outside, ranking, resampling, name=name) | ood_set
    per_sample = 1 if labels is None else labels[0].numel()
    values = resampling.values(labelled, answers_by_name, labels=per_sample) if labelled else {}
    if by_certainty := [metric for metric in RISK_COVERAGE if metric.name in metrics]:
        uncertainty = {
            score: -answers_by_name["confidence"] if score == MSP else answer_scores(id_predictions, score)
            for score in scores
        }
        hits = answers_by_name["hits"]
        values |= rank_answers(uncertainty, hits, by_certainty, resampling, answers=per_sample)
    return RowNumbers(id_set=values | id_set, ood_sets=ood_sets)


def rank(
    inside: Mapping[str, Tensor],
    outside: Mapping[str, Tensor],
    metrics: Sequence[Metric],
    resampling: Resampling,
    *,
    name: str,
    counts: Sequence[Tensor] = (),
) -> dict[str, MetricEstimate]:
    """Return OOD metrics for each score, with the names of `number_name`.

    Args:
        inside: Scores (N,) on the ID set by name. Metrics of the first score have no suffix.
        outside: The same scores (N',) on an OOD set.
        metrics: Metrics of ranks.
        resampling: Bootstrap settings.
        name: Name of the OOD set, which selects its resamples.
        counts: Number of scores per resampled unit, such as a text, on the ID set and on the OOD set; empty
            for one score each.
    """
    estimates: dict[str, MetricEstimate] = {}
    width = max((int(numbers.max()) for numbers in counts), default=1)
    for score, id_scores in inside.items():
        ranks = places(id_scores, outside[score])
        if counts:
            ranks = {
                side: filled_up(x, numbers, width, -1)
                for (side, x), numbers in zip(ranks.items(), counts, strict=True)
            }
        sides = ({side: x} for side, x in ranks.items())
        by_metric = resampling.values(metrics, *sides, name=name, labels=width)
        estimates |= {number_name(metric, score, [*inside]): x for metric, x in by_metric.items()}
    return estimates


def rank_answers(
    scores: Mapping[str, Tensor],
    hits: Tensor,
    metrics: Sequence[Metric],
    resampling: Resampling,
    *,
    answers: int = 1,
) -> dict[str, MetricEstimate]:
    """Return risk-coverage metrics for each score, with the names of `number_name`.

    Args:
        scores: Scores of the answers, shape (N Q,), by name. Metrics of the first score have no suffix.
        hits: Whether each answer is correct, shape (N Q,), boolean, or 0, 1 and NaN for padding.
        metrics: Metrics with the arguments `certainty_rank` and `hits`.
        resampling: Bootstrap settings. Intervals resample samples.
        answers: Number Q of consecutive answers per sample.
    """
    estimates: dict[str, MetricEstimate] = {}
    for score, uncertainty in scores.items():
        sample = {"certainty_rank": certainty_ranks(uncertainty, hits), "hits": hits}
        by_metric = resampling.values(metrics, sample, labels=answers)
        estimates |= {number_name(metric, score, [*scores]): x for metric, x in by_metric.items()}
    return estimates


def means(
    ood: Mapping[str, Mapping[str, Value]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return the unweighted mean of every value over the data sets of each non-empty group.

    Values that a data set of the group lacks are left out.
    """
    return {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names)
            for metric in _common([ood[n] for n in names])
        }
        for group, names in groups.items()
        if names
    }


def sample_values(predictions: StoredPredictions, labels: Tensor) -> dict[str, Tensor]:
    """Return `per_sample.answers` of the ensemble for labels of shape (N,) or (N, Q).

    With Q labels or words per sample the vectors have shape (N Q,). Padding words have NaN and class -1.
    """
    return _summary(predictions, (), (), labels)[0]


def ood_score(predictions: StoredPredictions, name: str) -> Tensor:
    """Return the OOD score of every sample, shape (N,), float64."""
    if (precomputed := predictions.scores.get(name)) is not None:
        return precomputed
    return torch.cat([_score(part, SCORES[name]) for part in predictions.split(at_once(predictions))])


def answer_scores(predictions: StoredPredictions, name: str) -> Tensor:
    """Return the OOD score of every answer, shape (N,), or (N Q,) for Q labels or words; NaN for padding words.

    Stored scores are scores of samples, which all Q answers of a sample share.
    """
    if (precomputed := predictions.scores.get(name)) is not None:
        return precomputed.repeat_interleave(math.prod(predictions.shape[2:-1]))
    return torch.cat(
        [score_entries(part, SCORES[name]).flatten() for part in predictions.split(at_once(predictions))]
    )


def _score(part: Responses, score: Score) -> Tensor:
    """Return the score of each sample, shape (N,): the mean over Q labels or words."""
    return of_samples(score_entries(part, score))


def score_entries(part: Responses, score: Score) -> Tensor:
    """Return the score of each sample (N,), or of each of its Q labels or words (N, Q), float64."""
    return score.compute(part.logits() if score.raw else part.log_probs.double())


def _unfilled(like: Tensor, count: int, *, filled: bool) -> Tensor:
    """Return a vector of length `count`; with padding it is initialized to NaN, or to class -1."""
    if filled:
        return like.new_empty(count)
    if like.dtype == torch.int64:
        return like.new_full((count,), -1)
    return torch.full((count,), math.nan, dtype=torch.float64)


def _summary(
    predictions: StoredPredictions,
    scores: Sequence[Score],
    diverse: Sequence[Metric],
    labels: Tensor | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, MetricEstimate]]:
    """Return values per sample, and diversity metrics.

    Returns:
        `per_sample.answers`, empty without labels; each OOD score by name, shape (N,), float64; diversity
        metrics of the members.
    """
    _, count, *_ = predictions.shape
    # The vectors for all samples are allocated before the loop. Small vectors that stay between temporary
    # tensors would fragment memory.
    by_answer: dict[str, Tensor] = {}
    by_score = dict(predictions.scores)
    confidence = -by_score[MSP] if MSP in by_score else None
    scores = [score for score in scores if score.name not in by_score]
    diversity: dict[str, list[float]] = {m.name: [] for m in diverse}
    sizes = []
    filled = labels is None or labels.ndim == 1 or bool((labels >= 0).all())
    begin = 0
    for part in predictions.split(at_once(predictions)):
        end = begin + part.shape[1]
        log_probs = part.flattened().log_probs.double()
        if labels is not None:
            ensemble = ensemble_log_probs(log_probs)
            size, part_labels = labels[0].numel(), labels[begin:end].flatten()
            chosen = slice(None) if filled else part_labels >= 0
            for name, vector in answers(ensemble.exp(), part_labels[chosen], log_probs=ensemble).items():
                every = by_answer.setdefault(name, _unfilled(vector, count * size, filled=filled))
                every[begin * size : end * size][chosen] = vector.to(every.dtype)
        for score in scores:
            vector = _score(part, score)
            by_score.setdefault(score.name, vector.new_empty(count))[begin:end] = vector
        sample = {"member_probs": log_probs.exp()} if diverse else {}
        for metric in diverse:
            diversity[metric.name].append(float(metric.of(sample)))
        sizes.append(log_probs.shape[1])
        begin = end
    if by_answer and confidence is not None:
        by_answer["confidence"] = confidence
    total = sum(sizes)
    means = {
        name: sum(v * size / total for v, size in zip(values, sizes, strict=True))
        for name, values in diversity.items()
    }
    return by_answer, by_score, {name: MetricEstimate(value=x, count=count) for name, x in means.items()}


PROBABILITY_MARGIN = 1e-12
"""Distance from 0 and 1 of the probabilities used to fit a temperature, because log odds of 0 and 1 are
infinite. Chosen by hand; twice the distance reduces the largest log odds by 0.7 of 27.6."""


class Measurement(NamedTuple):
    """Metrics, OOD scores and data sets to measure for every row.

    Attributes:
        metrics: Names of metrics, in the order of reports.
        scores: Names of OOD scores. Metrics of the first score have no suffix.
        resampling: Bootstrap settings of all intervals. All rows use the same resamples.
        groups: Names of the OOD sets in each group, by group: `all`, `near` and `far`.
        ood_val: Names of the OOD validation sets.
    """

    metrics: Sequence[str]
    scores: Sequence[str]
    resampling: Resampling
    groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ood_val: tuple[str, ...] = ()

    @property
    def ood(self) -> tuple[str, ...]:
        """Names of the OOD sets."""
        return self.groups.get("all", ())

    @property
    def tested(self) -> tuple[str, ...]:
        """Names of all test sets: the ID set and the OOD sets."""
        return (ID_NAME, *self.ood)

    def of_task(self, task: Task, *needs: MetricNeeds) -> list[Metric]:
        """Return the selected metrics that apply only to `task` and need any of `needs`."""
        return [m for m in metrics_of(task) if m.name in self.metrics and m.needs in needs]


def measure_all(
    id_predictions: StoredPredictions,
    labels: Tensor,
    ood_predictions: Mapping[str, StoredPredictions],
    header: Header,
    measurement: Measurement,
    *,
    queries: Tensor | None = None,
) -> RowNumbers:
    """Return all selected metrics that can be computed from predictions.

    Includes the metrics of `measure`, of the model's task, and of rerankers.

    Args:
        id_predictions: Predictions on the ID set.
        labels: Shape (N,) or (N, Q), int64, as from `data.labels.model_labels`.
        ood_predictions: Predictions on each OOD set.
        header: Header with the task, the class names and the label thresholds.
        measurement: Choice of values. Metrics of other tasks are skipped.
        queries: Index of each pair's query, shape (N,), int64, from 0. `None` if the model is not a reranker.
    """
    numbers = measure(
        id_predictions,
        labels,
        ood_predictions,
        metrics=measurement.metrics,
        scores=measurement.scores,
        resampling=measurement.resampling,
    )
    task, id_set, ood_sets = header.architecture.task, dict(numbers.id_set), dict(numbers.ood_sets)
    metrics = measurement.of_task(task, MetricNeeds.TASK, MetricNeeds.CERTAINTY)
    if metrics and task.measure is not None:
        id_set |= load(task.measure)(id_predictions, labels, header, metrics, measurement)
    if queries is not None:
        id_set |= measure_order(id_predictions, labels, queries, measurement)
    if (
        ood_predictions
        and (metrics := measurement.of_task(task, MetricNeeds.OOD))
        and task.scores is not None
    ):
        (inside, inside_counts), *outside = (
            load(task.scores)(predictions, header, measurement.scores)
            for predictions in (id_predictions, *ood_predictions.values())
        )
        for name, (by_score, counts) in zip(ood_predictions, outside, strict=True):
            if inside_counts.any() and counts.any():
                per_text = (inside_counts, counts)
                ranked = rank(inside, by_score, metrics, measurement.resampling, name=name, counts=per_text)
                ood_sets[name] = ood_sets[name] | ranked
    return replace(numbers, id_set=id_set, ood_sets=ood_sets, groups=measurement.groups)


def measure_order(
    id_predictions: StoredPredictions, labels: Tensor, queries: Tensor, measurement: Measurement
) -> dict[str, MetricEstimate]:
    """Return the selected ranking metrics of a reranker; empty without relevant passages or metrics.

    Args:
        id_predictions: Predictions on pairs of query and passage, with two classes.
        labels: Shape (N,), int64: 1 for a relevant passage.
        queries: Index of each pair's query, shape (N,), int64, from 0.
        measurement: Choice of values. Intervals resample queries.
    """
    chosen = [METRICS[name] for name in needing(measurement.metrics, MetricNeeds.QUERIES)]
    if not chosen or not bool((labels == 1).any()):
        return {}
    per_query = by_query(sample_values(id_predictions, labels)["log_odds"], labels == 1, queries)
    return measurement.resampling.values(chosen, per_query)


def measure_labels(
    id_predictions: StoredPredictions,
    labels: Tensor,
    header: Header,
    metrics: Sequence[Metric],
    measurement: Measurement,
) -> dict[str, MetricEstimate]:
    """Return metrics of a multi-label model.

    Args:
        id_predictions: Predictions.
        labels: Whether each label applies, shape (N, Q), int64, 0 or 1.
        header: Header with the probability threshold of each label; empty thresholds mean 0.5.
        metrics: Metrics of `classification.MULTI_LABEL`.
        measurement: Bootstrap settings. Intervals resample samples.
    """
    log_odds, (samples, number) = sample_values(id_predictions, labels)["log_odds"], labels.shape
    bounds = torch.tensor(header.label_thresholds or [HALF], dtype=torch.float64).logit()
    sample = {
        "decided": (log_odds.view(labels.shape) > bounds).flatten(),
        "applies": labels.flatten().bool(),
        "log_odds": log_odds,
        "label_number": torch.arange(number).repeat(samples),
    }
    return measurement.resampling.values(metrics, sample, labels=number)


def label_scale(
    predictions: StoredPredictions, labels: Tensor, temperature: float, header: Header, stored: Temperature
) -> Temperature:
    """Return the temperature of a multi-label model, with fitted label temperatures.

    See `fit_label_temperatures`. `header` and `stored` are ignored.
    """
    del header, stored
    return Temperature(temperature, fit_label_temperatures(predictions, labels, temperature))


def entity_scale(
    predictions: StoredPredictions, labels: Tensor, temperature: float, header: Header, stored: Temperature
) -> Temperature:
    """Return the temperature of a token classifier, with a fitted entity temperature.

    Fits with `fit_temperature`, where each predicted span is a sample of two classes. Entities need their own
    temperature, because the minimum of several words' probabilities is distributed differently from a word's
    probability, and most words are outside entities. Without predicted spans, the stored entity temperature
    is kept.

    Args:
        predictions: Predictions of words, with logits divided by `stored`.
        labels: Shape (N, Q), as in `measure_spans`.
        temperature: Temperature of words, in addition to `stored`.
        header: Header with the names of the C classes, which are tags.
        stored: Stored temperature. Its entity temperature is replaced, not multiplied.
    """
    _, _, correct, confidence = predicted_spans(Scaled(predictions, temperature), labels, header)
    if not len(correct):
        return Temperature(temperature, of_entities=stored.of_entities)
    share = confidence.clamp(PROBABILITY_MARGIN, 1 - PROBABILITY_MARGIN)
    log_probs = torch.stack([1 - share, share], -1).log().unsqueeze(0)
    fitted = fit_temperature(log_probs, correct.long())
    return Temperature(temperature, of_entities=fitted.temperature)


def predicted_spans(
    tested: StoredPredictions, labels: Tensor, header: Header
) -> tuple[Spans, dict[str, Tensor], Tensor, Tensor]:
    """Return the E spans of predicted tags, compared with labels (N, Q).

    Returns:
        The spans; the counts of `span_counts`, shape (N,) each; whether each span is correct, shape (E,),
        boolean; the confidence of each span, shape (E,), float64: the minimum probability of the predicted
        tag over the span's words.
    """
    per_word, (rows, words) = sample_values(tested, labels), labels.shape
    predicted, true = (
        spans_of(tags.view(labels.shape), header.class_names) for tags in (per_word["predicted"], labels)
    )
    counts = span_counts(predicted, true, rows=rows, words=words)
    correct = counts.pop("span_correct")
    confidence = lowest(per_word["confidence"], predicted.word_numbers(rows, words), len(correct))
    return predicted, counts, correct, confidence


def measure_spans(
    id_predictions: StoredPredictions,
    labels: Tensor,
    header: Header,
    metrics: Sequence[Metric],
    measurement: Measurement,
) -> dict[str, MetricEstimate]:
    """Return metrics of spans; without predicted spans no calibration and risk-coverage metrics.

    Args:
        id_predictions: Predictions of words.
        labels: Shape (N, Q), int64, negative for padding words.
        header: Header with the names of the C classes, which are tags, and the entity temperature.
        metrics: Metrics of `spans.SPANS`.
        measurement: OOD scores and bootstrap settings. Intervals resample texts. The score of a span is the
            maximum over its words.
    """
    resampling = measurement.resampling
    spans, counts, correct, confidence = predicted_spans(id_predictions, labels, header)
    by_certainty = [metric for metric in metrics if metric.needs is MetricNeeds.CERTAINTY]
    calibrated = [metric for metric in metrics if metric.bins is not None]
    counted = [metric for metric in metrics if metric not in (*by_certainty, *calibrated)]
    values = resampling.values(counted, counts) if counted else {}
    if not len(correct):
        return values
    per_text = spans.rows.bincount(minlength=len(labels))
    width = int(per_text.max())
    numbers = spans.word_numbers(*labels.shape)
    padded = partial(filled_up, counts=per_text, width=width, absent=math.nan)
    sample = {
        "span_confidence": padded(entity_probability(confidence, header.entity_temperature)),
        "span_correct": padded(correct.double()),
    }
    by_score = {
        score: padded(-lowest(-answer_scores(id_predictions, score), numbers, len(correct)))
        for score in (measurement.scores if by_certainty else ())
    }
    return (
        values
        | (resampling.values(calibrated, sample, labels=width) if calibrated else {})
        | rank_answers(by_score, sample["span_correct"], by_certainty, resampling, answers=width)
    )


def span_scores(
    predictions: StoredPredictions, header: Header, scores: Sequence[str]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the OOD scores of predicted spans by name, (E,), float64, and the spans per text, (N,).

    The score of a span is the maximum over its words.

    Args:
        predictions: Predictions of words.
        header: Header with the names of the C classes, which are tags.
        scores: Names in `ood_scores.SCORES`.
    """
    parts: dict[str, list[Tensor]] = {score: [] for score in scores}
    counts = []
    for part in predictions.split(at_once(predictions)):
        tags = most_probable(mean_probabilities(part))
        spans = spans_of(tags, header.class_names)
        numbers = spans.word_numbers(*tags.shape)
        counts.append(spans.rows.bincount(minlength=len(tags)))
        for score in scores:
            by_word = score_entries(part, SCORES[score]).flatten()
            parts[score].append(-lowest(-by_word, numbers, len(spans.rows)))
    return {score: torch.cat(scores_of_parts) for score, scores_of_parts in parts.items()}, torch.cat(counts)
