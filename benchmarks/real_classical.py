"""Classical baselines of `real.py` by scikit-learn, measured by hydractl's metric functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from promise_plan import Data
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from hydractl.data.datasets import Content, ImageSet, TextSet, of_kind
from hydractl.data.labels import required_labels
from hydractl.data.open_dataset import open_data
from hydractl.metrics.classification import ece
from hydractl.metrics.ood_ranking import accepted_at_tpr, auroc
from hydractl.metrics.per_sample import answers, places
from hydractl.metrics.temperature import fit_temperature, scale_log_probs

NEAREST, LOGISTIC, TFIDF = "1-NN on pixels", "logistic regression on pixels", "tf-idf, logistic regression"
STRENGTHS, PIXEL_STRENGTHS, ITERATIONS = (0.01, 0.1, 1.0, 10.0, 100.0), (0.01, 0.1, 1.0), 300
"""Inverse regularization strengths and iterations of logistic regression. Validation NLL chooses the strength."""
AURC = "1000 aurc"
EDGE = 28
"""Edge of the images in pixels."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of a baseline on one data set.

    Attributes:
        log_probs: Log-probabilities, shape (N, C).
        score: Default OOD score, shape (N,), higher for unknown inputs; None for the negated confidence.
    """

    log_probs: Tensor
    score: Tensor | None = None

    def scaled(self, temperature: float) -> Answers:
        """Return the answers with a temperature."""
        return Answers(scale_log_probs(self.log_probs[None], temperature)[0], self.score)

    @property
    def msp(self) -> Tensor:
        """Negated confidence, shape (N,)."""
        return -self.log_probs.exp().max(1).values

    @property
    def default(self) -> Tensor:
        """Default OOD score, shape (N,)."""
        return self.msp if self.score is None else self.score


Inputs = list[str] | np.ndarray
Baseline = Callable[[Inputs], Answers]


def opened(data: str) -> ImageSet | TextSet:
    """Open texts of a .jsonl file, or images."""
    if data.partition("::")[0].endswith(".jsonl"):
        return of_kind(open_data(data, content=Content.TEXTS), TextSet)
    return of_kind(open_data(data), ImageSet)


def inputs_of(data: str) -> Inputs:
    """Return texts, or pixels in [0, 1] of shape (N, EDGE * EDGE)."""
    items = opened(data)
    if isinstance(items, TextSet):
        return [text for text in items.texts if isinstance(text, str)]
    images = (items.image(i).convert("L").resize((EDGE, EDGE)) for i in range(len(items)))
    return np.stack([np.asarray(image, np.float32).ravel() / 255 for image in images])


def labels_of(data: str) -> Tensor:
    """Return the labels, shape (N,), int64."""
    return torch.as_tensor(np.asarray(required_labels(opened(data), data)), dtype=torch.long)


def nearest(train: np.ndarray, labels: np.ndarray) -> Baseline:
    """Return 1-NN. A class has the logit of the negated distance to its nearest image, and OOD scores are distances."""
    classes = [torch.from_numpy(train[labels == label]) for label in np.unique(labels)]

    def answer(inputs: Inputs) -> Answers:
        pixels = torch.from_numpy(np.asarray(inputs))
        distances = torch.stack([torch.cdist(pixels, of_class).min(1).values for of_class in classes], 1)
        return Answers((-distances.double()).log_softmax(1), distances.min(1).values)

    return answer


def logistic(train: Inputs, labels: np.ndarray, val: Inputs, val_labels: Tensor, *, texts: bool) -> Baseline:
    """Return logistic regression on pixels, or on tf-idf of words and word pairs."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit(train) if texts else None

    def features(inputs: Inputs) -> object:
        return inputs if vectorizer is None else vectorizer.transform(inputs)

    def fitted(strength: float) -> Baseline:
        model = LogisticRegression(C=strength, max_iter=ITERATIONS).fit(features(train), labels)
        return lambda inputs: Answers(torch.from_numpy(model.predict_log_proba(features(inputs))).double())

    def cost(baseline: Baseline) -> float:
        return float(answers_of(baseline(val), val_labels)["nll"].mean())

    return min(map(fitted, STRENGTHS if texts else PIXEL_STRENGTHS), key=cost)


def answers_of(given: Answers, labels: Tensor) -> dict[str, Tensor]:
    """Return hydractl's values per sample."""
    return answers(given.log_probs.exp(), labels, log_probs=given.log_probs)


def baselines(data: Data, *, texts: bool) -> Iterator[tuple[str, Baseline]]:
    """Yield the fitted baselines by name."""
    train, val = inputs_of(data.train), inputs_of(data.val)
    labels = labels_of(data.train).numpy()
    if isinstance(train, np.ndarray):
        yield NEAREST, nearest(train, labels)
    yield TFIDF if texts else LOGISTIC, logistic(train, labels, val, labels_of(data.val), texts=texts)


def measure_all(data: Data, *, texts: bool) -> dict[str, dict[str, float]]:
    """Return the numbers of all baselines by name, with a temperature fitted on the validation data."""
    known, near, far = inputs_of(data.test), inputs_of_all(data.near), inputs_of_all(data.far)
    rows = {}
    for name, baseline in baselines(data, texts=texts):
        val = baseline(inputs_of(data.val)).log_probs
        temperature = fit_temperature(val[None], labels_of(data.val)).temperature

        def answer(inputs: Inputs, baseline: Baseline = baseline, t: float = temperature) -> Answers:
            return baseline(inputs).scaled(t)

        rows[name] = measure(answer(known), labels_of(data.test), [*map(answer, near)], [*map(answer, far)])
    return rows


def inputs_of_all(sets: Mapping[str, str]) -> list[Inputs]:
    """Return the inputs of each set."""
    return [inputs_of(data) for data in sets.values()]


def measure(
    known: Answers, labels: Tensor, near: Sequence[Answers], far: Sequence[Answers]
) -> dict[str, float]:
    """Return the metrics of one baseline. OOD metrics are means over sets."""
    values = answers_of(known, labels)
    numbers = {
        "accuracy": float(values["hits"].double().mean()),
        "nll": float(values["nll"].mean()),
        "ece": float(ece(values["confidence"], values["hits"])),
        AURC: 1000 * aurc(values["confidence"], values["hits"]),
    }
    for kind, sets in (("near", near), ("far", far)):
        numbers[kind] = statistics.fmean(float(auroc(**places(known.default, ood.default))) for ood in sets)
        numbers[f"{kind} by msp"] = statistics.fmean(
            float(auroc(**places(known.msp, ood.msp))) for ood in sets
        )
    ranked = (places(known.default, ood.default) for ood in near)
    accepted = (float(accepted_at_tpr(ranks["inside"], ranks["outside"])) for ranks in ranked)
    return numbers | {"near accepted": statistics.fmean(accepted), "compute": 0.0, "training": 0.0}


def aurc(confidence: Tensor, hits: Tensor) -> float:
    """Return the area under the risk-coverage curve: the mean error rate of the k most confident answers.

    The mean is over k = 1 to N. Answers with equal confidence share their errors equally.

    Args:
        confidence: Shape (N,).
        hits: Shape (N,), boolean.
    """
    _, group, sizes = (-confidence).unique(return_inverse=True, return_counts=True)
    errors = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group, (~hits.bool()).double())
    each = (errors / sizes).repeat_interleave(sizes)
    return float((each.cumsum(0) / torch.arange(1, len(each) + 1)).mean())
