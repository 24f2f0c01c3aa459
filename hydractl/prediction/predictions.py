"""Predictions for users: probabilities and uncertainties of samples.

Axes: M members, N samples, C classes, Q labels or words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hydractl.manifest.guarantees import KnownTest, PredictionSets, Threshold
from hydractl.metrics.compute import ood_score, score_entries
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
"""Name of an OOD score, and a threshold. Samples with a lower score pass."""
UNKNOWN, UNSURE = "unknown", "unsure"
"""Reasons for samples that are not accepted, by test."""


class Bounds(NamedTuple):
    """Bounds of both tests of `accepted`; None for a missing test.

    Attributes:
        known_max: Bound of the known inputs.
        sure_bound: Threshold of the known inputs with a controlled risk, or of all inputs without `known_max`.
    """

    known_max: Bound | None = None
    sure_bound: Bound | None = None

    @classmethod
    def of(cls, known_test: KnownTest | None, threshold: Threshold | None) -> Bounds:
        """Return the bounds of stored tests. There are none if no threshold satisfies its risk."""
        known_max = None if known_test is None else (known_test.score, known_test.bound)
        if threshold is None:
            return cls(known_max)
        return cls() if threshold.below is None else cls(known_max, (threshold.score, threshold.below))

    def decide(self, scores: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Return whether each sample is accepted, and whether each sample is known, (N,), boolean.

        None without bounds, and without a bound of known inputs. Scores that are not finite pass no test.
        """
        is_known, is_sure = (
            None if bound is None else scores[bound[0]].isfinite() & (scores[bound[0]] < bound[1])
            for bound in self
        )
        if is_known is None or is_sure is None:
            return (is_sure if is_known is None else is_known), is_known
        return is_known & is_sure, is_known


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Uncertainties:
    """Uncertainty of N samples.

    Attributes:
        scores: OOD scores by their names in `eval`, (N,), float32: all scores of logits, and the
            feature-based scores stored in the model. For Q labels, the mean over labels. Higher is more OOD.
        accepted: Whether each sample is accepted by the stored tests, (N,), boolean. None without a stored
            test, or if no threshold satisfies the required risk.
        is_known: Whether each sample passes the test of known inputs, (N,), boolean. None without this test.
    """

    scores: Mapping[str, Tensor]
    accepted: Tensor | None = None
    is_known: Tensor | None = None

    def __len__(self) -> int:
        """Return N."""
        return len(self.entropy)

    @property
    def reason(self) -> tuple[str | None, ...] | None:
        """`unknown` or `unsure` for each sample that is not accepted, else None.

        None without a test of known inputs.
        """
        if self.accepted is None or self.is_known is None:
            return None
        tests = zip(self.accepted.tolist(), self.is_known.tolist(), strict=True)
        return tuple(None if accepted else UNSURE if is_known else UNKNOWN for accepted, is_known in tests)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, in nats, (N,)."""
        return self.scores["entropy"]

    @property
    def mutual_information(self) -> Tensor:
        """Disagreement of members, in nats, (N,); see `metrics.ood_scores.mutual_information`."""
        return self.scores["mi"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions(Uncertainties):
    """Predictions of a model on N samples, on the CPU. M = 1 for a base or a member.

    Attributes:
        labels: Name of the most probable class of each sample; class numbers if the model has no names.
        classes: Index of the most probable class, (N,), int64. The lowest index wins ties.
        probabilities: Mean of the members' probabilities, (N, C), float32.
        member_probabilities: Probabilities of each member, (M, N, C), float32.
        votes: Most probable class of each member, (M, N), int64.
        sets: Whether each class is in the prediction set of each sample, (N, C), boolean. None without stored
            sets.
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
        bounds: Bounds = NO_BOUNDS,
        rule: PredictionSets | None = None,
    ) -> Predictions:
        """Return the predictions from the outputs of members.

        Args:
            responses: Outputs with the logsumexp of logits, and optionally feature-based scores.
            names: Names of the C classes.
            bounds: Bounds that accept samples.
            rule: Stored rule for prediction sets, or None.
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
            **_uncertainties(_scores(responses), bounds),
        )

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, (N,)."""
        return self.probabilities.amax(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelPredictions(Uncertainties):
    """Predictions of a multi-label model on N samples and Q labels, on the CPU.

    Attributes:
        labels: Names of each sample's labels above their thresholds, in the order of the model.
        classes: Whether each label is above its threshold, (N, Q), int64, 0 or 1.
        probabilities: Mean of the members' probabilities of each label, (N, Q), float32. The sum is not 1.
        member_probabilities: Probabilities of each member, (M, N, Q), float32.
        votes: Whether each member's probability is above the threshold, (M, N, Q), boolean.
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
        bounds: Bounds = NO_BOUNDS,
        *,
        thresholds: Sequence[float] = (),
    ) -> LabelPredictions:
        """Return the predictions from the outputs of members; arguments as in `Predictions.of`.

        Empty `thresholds` mean 0.5 for all labels.
        """
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
            **_uncertainties(_scores(responses), bounds),
        )


class Entity(NamedTuple):
    """A span of words with a common label; see `metrics.spans`.

    Attributes:
        label: Label without the prefix of tags.
        text: Text of the span.
        start: Index of the first character in the text.
        end: Index after the last character.
        probability: Probability of the entity: the lowest probability of the predicted tags of its words,
            calibrated by the entity temperature.
        mutual_information: Highest mutual information of its words, in nats.
    """

    label: str
    text: str
    start: int
    end: int
    probability: float
    mutual_information: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WordPredictions(Uncertainties):
    """Predictions of a model for words, on N texts of at most Q words, on the CPU.

    OOD scores are means over the words of a text. They are NaN for a text without words.

    Attributes:
        words: Words of each text.
        labels: Name of the most probable class of each word.
        entities: Entities of each text in order, found in the labels.
        entity_scores: OOD scores of each entity of each text, by their names in `eval`: the highest score of
            its words.
        classes: Class index of each word, (N, Q), int64. -1 after the last word of a text.
        probabilities: Mean of the members' probabilities, (N, Q, C), float32. Here and below, NaN after the
            last word.
        member_probabilities: Probabilities of each member, (M, N, Q, C), float32.
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
        bounds: Bounds = NO_BOUNDS,
        *,
        entity_temperature: float = 1.0,
    ) -> WordPredictions:
        """Return the predictions from the outputs of members on the words of texts.

        Args:
            responses: Outputs with the logsumexp of logits.
            names: Names of the C classes.
            texts: Each text, with the first character and the end of each word.
            bounds: Bounds that accept texts.
            entity_temperature: Divisor of the log odds of entities.
        """
        mean, members = _probabilities(responses)
        classes = most_probable(mean)
        by_word = {name: score_entries(responses, score) for name, score in SCORES.items()}
        return cls(
            words=tuple(tuple(text[begin:end] for begin, end in spans) for text, spans in texts),
            labels=tuple(tuple(names[c] for c in row if c >= 0) for row in classes.tolist()),
            **_entities(classes, names, mean.amax(-1), by_word, texts, entity_temperature),
            classes=classes,
            probabilities=mean,
            member_probabilities=members,
            word_information=by_word["mi"].float(),
            **_uncertainties({name: of_samples(scores) for name, scores in by_word.items()}, bounds),
        )


def _entities(
    classes: Tensor,
    names: Sequence[str],
    confidence: Tensor,
    by_word: Mapping[str, Tensor],
    texts: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    temperature: float,
) -> dict[str, Any]:
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
    """Convert float32 numbers to Python floats with the fewest digits that give the same float32 number."""
    return x.numpy().astype(np.str_).astype(np.float64).tolist()


def answered_classes(responses: Responses, label_thresholds: Sequence[float] | None = None) -> Tensor:
    """Return the predicted class of each sample (N,) or word (N, Q), int64; any class for padding words.

    For a multi-label model, return whether each label is above its threshold, (N, Q), 0 or 1.

    Args:
        responses: Outputs of members.
        label_thresholds: Thresholds of a multi-label model; empty for 0.5. None for other models.
    """
    mean = mean_probabilities(responses)
    if label_thresholds is None:
        return mean.argmax(-1)
    return _above(label_thresholds, mean[..., 1]).long()


def _above(label_thresholds: Sequence[float], probabilities: Tensor) -> Tensor:
    """Return whether probabilities (..., Q) are above their thresholds, boolean. Empty thresholds mean 0.5."""
    return probabilities > torch.tensor(label_thresholds or [HALF], dtype=torch.float64)


def predictions_of(
    responses: Responses,
    names: Sequence[str],
    bounds: Bounds = NO_BOUNDS,
    rule: PredictionSets | None = None,
    *,
    label_thresholds: Sequence[float] = (),
) -> Predictions | LabelPredictions:
    """Return the predictions from the outputs of a model for a single label or several labels.

    See `Predictions.of` and `LabelPredictions.of` for the arguments.
    """
    if responses.log_probs.ndim == 3:  # (M, N, C)
        return Predictions.of(responses, names, bounds, rule)
    return LabelPredictions.of(responses, names, bounds, thresholds=label_thresholds)


def _probabilities(responses: Responses) -> tuple[Tensor, Tensor]:
    """Return the members' mean probabilities (N, ...), and each member's probabilities (M, N, ...)."""
    mean = torch.cat([mean_probabilities(part) for part in responses.split(SAMPLES_AT_ONCE)])
    return mean, responses.log_probs.exp()


def _scores(responses: Responses) -> dict[str, Tensor]:
    """Return all OOD scores of logits (N,), and the feature-based scores of the outputs."""
    return {name: ood_score(responses, name) for name in SCORES} | dict(responses.scores)


def _uncertainties(scores: Mapping[str, Tensor], bounds: Bounds) -> dict[str, Any]:
    """Return the fields of `Uncertainties` from all OOD scores (N,)."""
    single = {name: score.float() for name, score in scores.items()}
    accepted, is_known = bounds.decide(single)
    return {"scores": single, "accepted": accepted, "is_known": is_known}
