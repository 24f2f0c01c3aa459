"""Predictions for users: probabilities and uncertainties of samples.

Axes: M members, N samples, C classes, Q labels of a model for several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydractl.manifest.guarantees import PredictionSets
from hydractl.metrics.compute import question_scores, scored
from hydractl.metrics.conformal import class_sets
from hydractl.metrics.ood_scores import SCORES, mutual_information
from hydractl.metrics.per_sample import (
    SAMPLES_AT_ONCE,
    Responses,
    mean_probabilities,
    most_probable,
    of_samples,
)
from hydractl.metrics.selective import HALF
from hydractl.metrics.spans import entity_probability, lowest, span_labels, spans_of

Bound = tuple[str, float]
"""The name of an OOD score and a threshold: samples below it are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uncertainties:
    """What is known of the uncertainty of N samples.

    Attributes:
        scores: OOD scores by their names in `eval`, (N,), float32: all scores of logits, and the feature-based ones that
            the model stores; of Q labels the mean over them. Higher is more OOD.
        accepted: Whether each sample is accepted by the stored threshold, (N,), boolean. None without a stored threshold,
            or if no threshold satisfies the required risk.
    """

    scores: Mapping[str, Tensor]
    accepted: Tensor | None = None

    def __len__(self) -> int:
        """Return N."""
        return len(self.entropy)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, in nats, (N,)."""
        return self.scores["entropy"]

    @property
    def mutual_information(self) -> Tensor:
        """Mutual information, the disagreement of members, in nats, (N,): see `metrics.ood_scores.mutual_information`."""
        return self.scores["mi"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions(Uncertainties):
    """Predictions of a model on N samples, on the CPU and without gradients; M = 1 for a base or a member.

    Attributes:
        labels: Name of the most probable class of each sample; its number if the model has no class names.
        classes: Index of that class, (N,), int64; the lowest among equals.
        probabilities: Mean of the members' probabilities, (N, C), float32.
        member_probabilities: Probabilities of each member, (M, N, C), float32.
        votes: Most probable class of each member, (M, N), int64.
        sets: Whether each class is in the stored prediction set of each sample, (N, C), boolean. None without stored sets.
    """

    labels: tuple[str, ...]
    classes: Tensor
    probabilities: Tensor
    member_probabilities: Tensor
    votes: Tensor
    sets: Tensor | None = None

    @classmethod
    def of(
        cls,
        responses: Responses,
        names: Sequence[str],
        bound: Bound | None = None,
        rule: PredictionSets | None = None,
    ) -> Predictions:
        """Return the predictions from the outputs of members.

        Args:
            responses: Outputs with the logsumexp of logits, and optionally feature-based scores.
            names: Names of the C classes.
            bound: Threshold that accepts samples.
            rule: Which prediction sets samples have.
        """
        mean, members = _probabilities(responses)
        classes = mean.argmax(1)
        return cls(
            labels=tuple(names[i] for i in classes.tolist()),
            classes=classes,
            probabilities=mean,
            member_probabilities=members,
            votes=members.argmax(2),
            sets=None if rule is None else class_sets(mean, rule),
            **_uncertainties(_scores(responses), bound),
        )

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (N,)."""
        return self.probabilities.amax(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelPredictions(Uncertainties):
    """Predictions of a model that may answer several of Q labels, on N samples; as `Predictions`.

    Attributes:
        labels: Names of the labels of each sample whose probability is above their threshold, in the order of the model.
        classes: Whether each label is one of those, (N, Q), int64, 0 or 1.
        probabilities: Mean of the members' probabilities of each label, (N, Q), float32; they do not sum to 1.
        member_probabilities: Those of each member, (M, N, Q), float32.
        votes: Whether they are above the threshold, (M, N, Q), boolean.
        label_information: Mutual information of each label, in nats, (N, Q), float32.
    """

    labels: tuple[tuple[str, ...], ...]
    classes: Tensor
    probabilities: Tensor
    member_probabilities: Tensor
    votes: Tensor
    label_information: Tensor

    @classmethod
    def of(
        cls,
        responses: Responses,
        names: Sequence[str],
        bound: Bound | None = None,
        *,
        thresholds: Sequence[float] = (),
    ) -> LabelPredictions:
        """Return the predictions from the outputs of members, as `Predictions.of`; without `thresholds` they are one half."""
        mean, members = (probabilities[..., 1] for probabilities in _probabilities(responses))
        classes = _above(thresholds, mean)
        parts = responses.split(SAMPLES_AT_ONCE)
        return cls(
            labels=tuple(
                tuple(name for name, applies in zip(names, row, strict=False) if applies)
                for row in classes.tolist()
            ),
            classes=classes.long(),
            probabilities=mean,
            member_probabilities=members,
            votes=_above(thresholds, members),
            label_information=torch.cat([mutual_information(p.log_probs.double()).float() for p in parts]),
            **_uncertainties(_scores(responses), bound),
        )


class Entity(NamedTuple):
    """A span of words with one label; see `metrics.spans`.

    Attributes:
        label: Its label, without the prefix of tags.
        text: What stands there.
        start: Its first character in the text.
        end: The character behind its last.
        probability: That it is one, by the lowest probability of the predicted tags among its words and the temperature of entities.
        mutual_information: The highest mutual information among its words, in nats.
    """

    label: str
    text: str
    start: int
    end: int
    probability: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordPredictions(Uncertainties):
    """Predictions of a model that gives each word a class, on N texts of at most Q words; as `Predictions`.

    Scores are means over the words of a text, and not-a-number for a text without words.

    Attributes:
        words: Each text's words.
        labels: Name of the most probable class of each of them.
        entities: Spans of words that these labels make, in order.
        entity_scores: OOD scores of logits by their names in `eval`, of each entity of each text: the highest of its words.
        classes: Index of the class of each word, (N, Q), int64; -1 where a text has no more.
        probabilities: Mean of the members' probabilities, (N, Q, C), float32; not-a-number where a text has no more, as below.
        member_probabilities: Those of each member, (M, N, Q, C), float32.
        word_information: Mutual information of each word, in nats, (N, Q), float32.
    """

    words: tuple[tuple[str, ...], ...]
    labels: tuple[tuple[str, ...], ...]
    entities: tuple[tuple[Entity, ...], ...]
    entity_scores: Mapping[str, tuple[tuple[float, ...], ...]]
    classes: Tensor
    probabilities: Tensor
    member_probabilities: Tensor
    word_information: Tensor

    @classmethod
    def of(
        cls,
        responses: Responses,
        names: Sequence[str],
        texts: Sequence[tuple[str, Sequence[tuple[int, int]]]],
        bound: Bound | None = None,
        *,
        entity_temperature: float = 1.0,
    ) -> WordPredictions:
        """Return the predictions from the outputs of members on the words of texts.

        Args:
            responses: Outputs with the logsumexp of logits.
            names: Names of the C classes.
            texts: Each text, and the characters of its words.
            bound: Threshold that accepts texts.
            entity_temperature: Divides the log odds of entities' probabilities.
        """
        mean, members = _probabilities(responses)
        classes = most_probable(mean)
        by_word = {name: question_scores(responses, score) for name, score in SCORES.items()}
        return cls(
            words=tuple(tuple(text[begin:end] for begin, end in spans) for text, spans in texts),
            labels=tuple(tuple(names[c] for c in row if c >= 0) for row in classes.tolist()),
            **_entities(classes, names, mean.amax(-1), by_word, texts, entity_temperature),
            classes=classes,
            probabilities=mean,
            member_probabilities=members,
            word_information=by_word["mi"].float(),
            **_uncertainties({name: of_samples(scores) for name, scores in by_word.items()}, bound),
        )


def _entities(
    classes: Tensor,
    names: Sequence[str],
    confidence: Tensor,
    by_word: Mapping[str, Tensor],
    texts: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    temperature: float,
) -> dict[str, Any]:
    """Return the fields of `WordPredictions` that are of entities."""
    spans, labels = spans_of(classes, names), span_labels(names)
    numbers, count = spans.word_numbers(*classes.shape), len(spans.rows)
    probability = entity_probability(lowest(confidence.double().flatten(), numbers, count), temperature)
    scores = {name: shortest(-lowest(-x.float().flatten(), numbers, count)) for name, x in by_word.items()}
    entities = []
    for row, first, last, label, p, mi in zip(
        *(x.tolist() for x in spans), shortest(probability.float()), scores["mi"], strict=True
    ):
        text, words = texts[row]
        start, end = words[first][0], words[last][1]
        entities.append(Entity(labels[label], text[start:end], start, end, p, mi))
    ends = spans.rows.bincount(minlength=len(texts)).cumsum(0).tolist()
    by_text = [slice(begin, end) for begin, end in pairwise([0, *ends])]
    return {
        "entities": tuple(tuple(entities[part]) for part in by_text),
        "entity_scores": {n: tuple(tuple(values[part]) for part in by_text) for n, values in scores.items()},
    }


def shortest(x: Tensor) -> Any:  # noqa: ANN401 - lists of lists
    """Return float32 numbers as those of the fewest digits that are they."""
    return x.numpy().astype(np.str_).astype(np.float64).tolist()


def answered_classes(responses: Responses, label_thresholds: Sequence[float] | None = None) -> Tensor:
    """Return the most probable class of each sample (N,) or word (N, Q), int64; or which of Q labels are above their thresholds.

    Args:
        responses: Outputs of members.
        label_thresholds: Of models for several labels, those of the labels, one half if empty; None of others.
    """
    mean = mean_probabilities(responses)
    if label_thresholds is None:
        return mean.argmax(-1)
    return _above(label_thresholds, mean[..., 1]).long()


def _above(label_thresholds: Sequence[float], probabilities: Tensor) -> Tensor:
    """Return whether probabilities (..., Q) of labels are above their thresholds, one half if empty, boolean."""
    return probabilities > torch.tensor(label_thresholds or [HALF], dtype=torch.float64)


def predictions_of(
    responses: Responses,
    names: Sequence[str],
    bound: Bound | None = None,
    rule: PredictionSets | None = None,
    *,
    label_thresholds: Sequence[float] = (),
) -> Predictions | LabelPredictions:
    """Return the predictions from the outputs of members, of models for one label or for several; see there."""
    if responses.log_probs.ndim == 3:  # (M, N, C)
        return Predictions.of(responses, names, bound, rule)
    return LabelPredictions.of(responses, names, bound, thresholds=label_thresholds)


def _probabilities(responses: Responses) -> tuple[Tensor, Tensor]:
    """Return the mean of members' probabilities (N, ...), and each member's (M, N, ...)."""
    mean = torch.cat([mean_probabilities(part) for part in responses.split(SAMPLES_AT_ONCE)])
    return mean, responses.log_probs.exp()


def _scores(responses: Responses) -> dict[str, Tensor]:
    """Return all scores of logits (N,), and those that come with the outputs."""
    return {name: scored(responses, name) for name in SCORES} | dict(responses.scores)


def _uncertainties(scores: Mapping[str, Tensor], bound: Bound | None) -> dict[str, Any]:
    """Return the fields of `Uncertainties`, given all scores (N,)."""
    single = {name: score.float() for name, score in scores.items()}
    return {"scores": single, "accepted": None if bound is None else single[bound[0]] < bound[1]}
