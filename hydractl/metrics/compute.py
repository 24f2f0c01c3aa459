"""Computes the values of a report from the members' predictions. Pure functions of tensors and names.

`measure_all` returns the values of any task; `measure` those of single labels.

Axes: M members, N samples, Q labels or words of a sample, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from hydractl.manifest.document import Value
from hydractl.manifest.header import Header
from hydractl.manifest.report import Difference
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.metrics.classification import by_query
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.metrics.ood_ranking import RANKING
from hydractl.metrics.ood_scores import MSP, SCORES, Score, number_name
from hydractl.metrics.per_sample import (
    Responses,
    StoredPredictions,
    answers,
    at_once,
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
"""Values by metric name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowNumbers:
    """Values of a row except costs: on the ID set, on each OOD set, and unweighted means over groups of OOD sets."""

    id_set: dict[str, MetricEstimate]
    ood_sets: dict[str, dict[str, MetricEstimate]]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Value]:
        """As in `manifest.Row`."""
        return _to_values(self.id_set)

    @property
    def ood(self) -> dict[str, dict[str, Value]]:
        """As in `manifest.Row`."""
        return {name: _to_values(estimates) for name, estimates in self.ood_sets.items()}

    @property
    def mean_intervals(self) -> dict[str, dict[str, tuple[float, float]]]:
        """As in `manifest.Row`: for the means of each non-empty group."""
        return interval_ends(self._means())

    def difference(self, other_row: RowNumbers) -> Difference | None:
        """Return the differences to another row on the same samples; None without intervals."""
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
    """Return the mean of every value over each non-empty group."""
    return {
        group: {
            metric: mean_of([estimates[place][metric] for place in places])
            for metric in _common([estimates[place] for place in places])
        }
        for group, places in groups.items()
        if places
    }


def _common(several: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the metrics that all sets have, in the order of the first."""
    return [metric for metric in several[0] if all(metric in estimates for estimates in several)]


def _to_values(estimates: Estimates) -> dict[str, Value]:
    return {metric: estimate.to_value() for metric, estimate in estimates.items()}


def interval_ends(means: Mapping[str, Estimates]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the intervals of all values that have one."""
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
    """Return the differences of all values that two rows have, by data set or group."""
    return {
        name: _difference(by_metric, others[name]) for name, by_metric in estimates.items() if name in others
    }


def measure(
    tested: StoredPredictions,
    labels: Tensor | None,
    foreign: Mapping[str, StoredPredictions],
    *,
    metrics: Sequence[str],
    scores: Sequence[str],
    resampling: Resampling,
) -> RowNumbers:
    """Return all selected metrics of a model or an ensemble that can be computed from predictions.

    Predictions are read once and may lie on disk; only a few values per sample are held in memory.

    Args:
        tested: Predictions on the ID set.
        labels: Shape (N,), int64, in 0..C-1; (N, Q) for models that answer Q labels; None if no metric needs them.
        foreign: Predictions on each OOD set.
        metrics: Names from `registry.METRICS`; those that cannot be computed from predictions are skipped.
        scores: Names from `ood_scores.EVERY`: they rank the samples in OOD metrics; `number_name` gives the names. Fitted
            scores come with the predictions.
        resampling: Bootstrap settings; every score uses the same resamples.
    """
    labelled, diverse = (
        [METRICS[name] for name in needing(metrics, needs)]
        for needs in (MetricNeeds.LABELS, MetricNeeds.MEMBERS)
    )
    ranking = [metric for metric in RANKING if metric.name in metrics]
    named = scores if ranking and foreign else ()
    ranks = [SCORES[score] for score in named if score in SCORES]
    answers_by_name, id_scores, id_set = _summary(tested, ranks, diverse, labels)
    ood_sets: dict[str, dict[str, MetricEstimate]] = {}
    for name, predictions in foreign.items():
        _, set_scores, ood_set = _summary(predictions, ranks, diverse)
        inside, outside = (
            {score: by_score[score] for score in named} for by_score in (id_scores, set_scores)
        )
        ood_sets[name] = rank(inside, outside, ranking, resampling, name=name) | ood_set
    per_sample = 1 if labels is None else labels[0].numel()
    values = resampling.values(labelled, answers_by_name, labels=per_sample) if labelled else {}
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
    """Return OOD metrics by each score, named by `number_name`.

    Args:
        inside: Scores (N,) on the ID set, by name; the first gives metrics their plain names.
        outside: The same scores (N',) on an OOD set.
        metrics: Those that read ranks.
        resampling: Bootstrap settings.
        name: Of the OOD set, which selects its resamples.
        counts: How many scores each unit that is resampled has, on the ID and the OOD set; one each if empty.
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


def means(
    ood: Mapping[str, Mapping[str, Value]], groups: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return the unweighted mean over data sets of every value, for each non-empty group."""
    return {
        group: {
            metric: math.fsum(ood[n][metric].value for n in names) / len(names)
            for metric in _common([ood[n] for n in names])
        }
        for group, names in groups.items()
        if names
    }


def answered(predictions: StoredPredictions, labels: Tensor) -> dict[str, Tensor]:
    """Return `per_sample.answers` of the ensemble's predictions and labels (N,); of all labels or words of all samples, (N, Q).

    Of words that a text has not, they are not-a-number, and the class -1.
    """
    return _summary(predictions, (), (), labels)[0]


def scored(predictions: StoredPredictions, name: str) -> Tensor:
    """Return the OOD score of every sample, (N,), float64."""
    if (precomputed := predictions.scores.get(name)) is not None:
        return precomputed
    return torch.cat([_score(part, SCORES[name]) for part in predictions.split(at_once(predictions))])


def _score(part: Responses, score: Score) -> Tensor:
    """Return a score of each sample, (N,): of Q labels the mean of theirs."""
    return of_samples(question_scores(part, score))


def question_scores(part: Responses, score: Score) -> Tensor:
    """Return a score of each sample (N,), or of each of the Q labels or words of each (N, Q), float64."""
    return score.compute(part.logits() if score.raw else part.log_probs.double())


def _unfilled(like: Tensor, count: int, *, filled: bool) -> Tensor:
    """Return a vector for so many values; where not all will come, it is of not-a-numbers, or of classes -1."""
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
    """Return values per sample, and metrics.

    Returns:
        `per_sample.answers`, empty without labels; each score of every sample, (N,), float64; diversity metrics of the members.
    """
    _, count, *_ = predictions.shape
    # vectors for all samples, made at once: small ones between what comes and goes would keep memory in pieces
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


CERTAIN = 1e-12
"""Distance from 0 and 1 of the probabilities that a temperature is fitted on."""


class Measurement(NamedTuple):
    """Choice of the numbers of every row.

    Attributes:
        metrics: Names of metrics, in the order of reports.
        scores: OOD scores. Metrics of the first one have no suffix.
        resampling: Resamples of all intervals: the same in all rows, on all data sets.
        groups: Names of the OOD sets of each mean.
        ood_val: Names of the validation OOD sets.
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
        """Names of the data sets that numbers describe: the ID set and the OOD sets."""
        return (ID_NAME, *self.ood)

    def of_task(self, task: Task, needs: MetricNeeds) -> list[Metric]:
        """Return the selected metrics that only models of a task have."""
        return [m for m in metrics_of(task) if m.name in self.metrics and m.needs is needs]


def measure_all(
    tested: StoredPredictions,
    labels: Tensor,
    foreign: Mapping[str, StoredPredictions],
    header: Header,
    measurement: Measurement,
    *,
    queries: Tensor | None = None,
) -> RowNumbers:
    """Return all selected metrics that can be computed from predictions: those of `compute.measure`, of the task, and of rerankers.

    Args:
        tested: Predictions on the ID set.
        labels: Shape (N,) or (N, Q), int64, as `data.labels.model_labels` has them.
        foreign: Predictions on each OOD set.
        header: Says the task, the names of classes and the thresholds of labels.
        measurement: The choice of numbers; metrics of other tasks are skipped.
        queries: Shape (N,), int64: the query of each pair, from 0; None if the model is no reranker.
    """
    numbers = measure(
        tested,
        labels,
        foreign,
        metrics=measurement.metrics,
        scores=measurement.scores,
        resampling=measurement.resampling,
    )
    task, id_set, ood_sets = header.architecture.task, dict(numbers.id_set), dict(numbers.ood_sets)
    if (metrics := measurement.of_task(task, MetricNeeds.TASK)) and task.measure is not None:
        id_set |= load(task.measure)(
            tested, labels, header, metrics=metrics, resampling=measurement.resampling
        )
    if queries is not None:
        id_set |= measure_order(tested, labels, queries, measurement)
    if foreign and (metrics := measurement.of_task(task, MetricNeeds.OOD)) and task.scores is not None:
        (inside, inside_counts), *outside = (
            load(task.scores)(predictions, header, measurement.scores)
            for predictions in (tested, *foreign.values())
        )
        for name, (by_score, counts) in zip(foreign, outside, strict=True):
            if inside_counts.any() and counts.any():
                per_text = (inside_counts, counts)
                ranked = rank(inside, by_score, metrics, measurement.resampling, name=name, counts=per_text)
                ood_sets[name] = ood_sets[name] | ranked
    return replace(numbers, id_set=id_set, ood_sets=ood_sets, groups=measurement.groups)


def measure_order(
    tested: StoredPredictions, labels: Tensor, queries: Tensor, measurement: Measurement
) -> dict[str, MetricEstimate]:
    """Return the selected metrics of the order that a reranker gives passages; none if no passage is relevant.

    Args:
        tested: Predictions on pairs of a query and a passage, of two classes.
        labels: Shape (N,), int64: 1 for a relevant passage.
        queries: Shape (N,), int64: the query of each pair, from 0.
        measurement: What is measured; intervals resample queries.
    """
    chosen = [METRICS[name] for name in needing(measurement.metrics, MetricNeeds.QUERIES)]
    if not chosen or not bool((labels == 1).any()):
        return {}
    per_query = by_query(answered(tested, labels)["log_odds"], labels == 1, queries)
    return measurement.resampling.values(chosen, per_query)


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
    _, _, correct, confidence = predicted_spans(Scaled(predictions, temperature), labels, header)
    if not len(correct):
        return Temperature(temperature, of_entities=stored.of_entities)
    share = confidence.clamp(CERTAIN, 1 - CERTAIN)
    log_probs = torch.stack([1 - share, share], -1).log().unsqueeze(0)
    fitted = fit_temperature(log_probs, correct.long())
    return Temperature(temperature, of_entities=fitted.temperature)


def predicted_spans(
    tested: StoredPredictions, labels: Tensor, header: Header
) -> tuple[Spans, dict[str, Tensor], Tensor, Tensor]:
    """Return the E spans of predicted tags, compared with labels (N, Q).

    Returns:
        The spans; the counts of `span_counts`, (N,) each; whether each span is correct, (E,), boolean; its confidence, the
        lowest probability of the predicted tag among its words, (E,), float64.
    """
    per_word, (rows, words) = answered(tested, labels), labels.shape
    predicted, true = (
        spans_of(tags.view(labels.shape), header.class_names) for tags in (per_word["predicted"], labels)
    )
    counts = span_counts(predicted, true, rows=rows, words=words)
    correct = counts.pop("span_correct")
    confidence = lowest(per_word["confidence"], predicted.word_numbers(rows, words), len(correct))
    return predicted, counts, correct, confidence


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
