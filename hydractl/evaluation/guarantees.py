"""Thresholds and prediction sets of a row, and the copy of the model that stores them (`eval --save-model`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydractl import progress
from hydractl.checkpoint import Checkpoint, spec_of, tensor_bytes, write_checkpoint
from hydractl.errors import DataError, UsageError
from hydractl.evaluation.options import KEEP_KNOWN_OPTION, THRESHOLD_OPTION
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import Fingerprint, Value
from hydractl.manifest.guarantees import ClassHits, KnownTest, PredictionSets, SetNumbers, Threshold
from hydractl.manifest.header import Header
from hydractl.manifest.report import Line, Row
from hydractl.manifest.terms import MOST_CLASSES, Risk, SetRule, Temperature
from hydractl.messages import counted
from hydractl.metrics.compute import ood_score
from hydractl.metrics.conformal import binomial_interval, class_sets, fit_thresholds, known_max, nonconformity
from hydractl.metrics.curves import risk_coverage
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION, is_fitted
from hydractl.metrics.per_sample import StoredPredictions, at_labels, at_once, mean_probabilities
from hydractl.metrics.registry import SET_COVERAGE, SET_SIZE, TEMPERATURE, needing
from hydractl.metrics.selective import accepted_and_wrong, errors_among_accepted, label_thresholds
from hydractl.output.publish import Sink
from hydractl.prediction.class_names import Classes
from hydractl.prediction.feature_ood import Scores
from hydractl.prediction.predictions import answered_classes

EVAL, FUSE = "eval", "fuse"
"""Commands that determine stored results: `eval --save-model` fits results, and `fuse` copies results of its
members."""
THRESHOLD, LABEL_THRESHOLDS, QUANTILE = "threshold", "choice of label thresholds", "conformal quantile"
STANDARDIZATION = f"standardization of `{ENERGY_DENSITY}`"


def fit_label_thresholds(predictions: StoredPredictions, labels: Tensor) -> tuple[float, ...]:
    """Return the probability thresholds of a row's Q labels with the highest F1.

    Args:
        predictions: Predictions on the ID set after temperature scaling.
        labels: Shape (N, Q), int64.
    """
    parts = [mean_probabilities(part)[..., 1] for part in predictions.split(at_once(predictions))]
    return label_thresholds(torch.cat(parts), labels)


def fit_threshold(
    predictions: StoredPredictions,
    labels: Tensor,
    score: str,
    risk: Risk,
    *,
    by_label: Sequence[float] | None = None,
    among: Tensor | None = None,
) -> tuple[Threshold, Line]:
    """Return a row's threshold on an OOD score, and the risk-coverage curve of the calibration samples.

    The bound of the threshold is `None` if no bound satisfies the guarantee. Other bounds are at a point of the
    curve.

    Args:
        predictions: Predictions on the ID set after temperature scaling.
        labels: Shape (N,), or (N, Q) for Q labels or words, int64; negative labels are ignored. An answer is
            wrong if any of its Q parts is wrong.
        score: Name of the OOD score.
        risk: Maximum error rate.
        by_label: Probability thresholds of Q labels. `None` for models that answer the most probable class.
        among: Calibration samples, shape (N,), boolean. `None` for all.

    Raises:
        DataError: If there are no calibration samples.
    """
    size = at_once(predictions)
    hits = torch.cat(
        [
            ((answered_classes(part, by_label) == y) | (y < 0)).view(len(y), -1).all(1)
            for part, y in zip(predictions.split(size), labels.split(size), strict=True)
        ]
    )
    scores = tested_scores(predictions, score)
    if among is not None:
        hits, scores = hits[among], scores[among]
    if not len(hits):
        raise DataError(
            f"`{KEEP_KNOWN_OPTION}`: none of the {counted(len(labels), 'sample')} of `--data` is left for `{THRESHOLD_OPTION}`",
            hint=f"use more samples, or leave out `{KEEP_KNOWN_OPTION}`",
        )
    selected = (
        accepted_and_wrong(scores, hits, risk=risk.share)
        if risk.delta is None
        else errors_among_accepted(scores, hits, risk=risk.share, delta=risk.delta)
    )
    threshold = Threshold(
        score=score,
        risk=risk.share,
        guarantee=risk.guarantee,
        delta=risk.delta,
        count=len(hits),
        version=VERSION if is_fitted(score) else 1,
        **selected._asdict(),
    )
    return threshold, risk_coverage(scores, hits, accepted=selected.accepted)


def fit_known(
    predictions: StoredPredictions, score: str, share: float, among: Tensor
) -> tuple[KnownTest, Tensor]:
    """Return a row's test of known inputs, and whether each sample passes, shape (N,), boolean.

    Args:
        predictions: As in `fit_threshold`.
        score: Name of the OOD score.
        share: Minimum share of known inputs that pass.
        among: Calibration samples, shape (N,), boolean.
    """
    scores = tested_scores(predictions, score)
    below, accepted = known_max(scores[among], share)
    known_test = KnownTest(
        score=score,
        below=below,
        share=share,
        count=int(among.sum()),
        accepted=accepted,
        version=VERSION if is_fitted(score) else 1,
    )
    return known_test, scores < known_test.bound


def first_half(content: np.ndarray) -> Tensor:
    """Return whether each sample is in the first half by digest, shape (N,), boolean.

    Equal samples are in the same half. Unlike `::part=1/2`, which compares digests with a constant, the data of
    `::part=1/2` have two halves too.

    Args:
        content: Digests of the samples, type `DIGEST`, shape (N,).
    """
    return torch.from_numpy(content <= np.sort(content)[(len(content) - 1) // 2])


def tested_scores(predictions: StoredPredictions, score: str) -> Tensor:
    """Return an OOD score (N,), in float32 if computed from logits, as in `predict`."""
    scores = ood_score(predictions, score)
    return scores if score in predictions.scores else scores.float()


def check_stores(model_file: OpenModel, classes: Classes | None) -> None:
    """Raise if `--save-model` would write a model with classes other than the classes of this run.

    Raises:
        UsageError: If the classes or templates differ.
    """
    if stores_other_classes(model_file, classes):
        raise UsageError(
            f"`--save-model`: {model_file.reference} stores other classes, or none",
            hint="fuse the members with `--classes` and `--template` first",
        )


def stores_other_classes(model_file: OpenModel, classes: Classes | None) -> bool:
    """Return whether a zero-shot model stores class names or templates other than those of this run."""
    prompting = model_file.header.prompting
    if classes is None or prompting is None:
        return False
    return (classes.names, classes.templates) != (model_file.header.labels, prompting.templates)


def stored_guarantees(
    model_file: OpenModel, row: Row, temperature: Temperature, *, shortened: bool, refits_scores: bool
) -> dict[str, Any]:
    """Return the header fields of the model's copy: threshold, known inputs, label thresholds, prediction sets.

    Each field is fitted in this run, or else copied from the model if it is still valid. Warns about stored
    results that are no longer valid. Threshold and test of known inputs are valid only together.

    Args:
        model_file: The model.
        row: Row of the model.
        temperature: Temperature of the copy.
        shortened: Whether this run has another maximum length of texts.
        refits_scores: Whether this run fits the feature-based OOD scores again.
    """
    header, why = model_file.header, why_invalid(model_file, temperature, shortened=shortened)
    changes: dict[str, Any] = {
        "threshold": row.threshold,
        "known_test": row.known_test,
        "label_thresholds": row.label_thresholds,
        "prediction_sets": row.sets and row.sets.rule,
    }
    tests = (header.threshold, header.known_test)
    refitted = refits_scores and any(test and is_fitted(test.score) for test in tests)
    replaced = "the new test of this run" if row.threshold or row.known_test else None
    reason = why or ("newly fitted scores" if refitted else replaced)
    for field, subject, option in (
        ("threshold", "threshold", THRESHOLD_OPTION),
        ("known_test", "test of known inputs", KEEP_KNOWN_OPTION),
    ):
        stored = getattr(header, field)
        if changes[field] is None and stored is not None and reason:
            progress.warn(
                f"{model_file.reference}: its {subject} is not kept: it is not valid for {reason}; find one with `{option}`"
            )
        elif changes[field] is None:
            changes[field] = stored
    if not row.label_thresholds and header.label_thresholds:
        if temperature == header.scale:
            changes["label_thresholds"] = header.label_thresholds
        else:
            progress.warn(
                f"{model_file.reference}: its label thresholds are not kept, as they are not valid for another temperature; "
                "choose others with `--label-thresholds`"
            )
    if row.sets is None and header.prediction_sets is not None:
        progress.warn(
            f"{model_file.reference}: its prediction sets are not kept: they are not valid for {why}; fit them with `--sets`"
        )
    return changes


def write_copy(file: Sink, checkpoint: Checkpoint, header: Header, scores: Scores | None) -> None:
    """Write a copy of a checkpoint with another header and, if given, newly fitted OOD scores.

    The weights are copied byte for byte.
    """
    tensors = {} if scores is None else scores.tensors()
    beside = checkpoint.beside if scores is None else {n: spec_of(t) for n, t in tensors.items()}
    write_checkpoint(
        file,
        checkpoint.specs | beside,
        lambda name: [tensor_bytes(tensors[name]) if name in tensors else checkpoint.spans[name]],
        header=header,
    )


def sources_of_stored(header: Header) -> Iterator[tuple[str, str]]:
    """Yield (name of a stored result, digest of the data set that `eval --save-model` fitted it on).

    Follows the lineage backwards. A new temperature is multiplied with the stored temperature, so every run
    counts. A new threshold replaces the old threshold, so only the last run counts. Other commands change
    weights and drop both, except `fuse`, which copies a temperature stored in all members.
    """
    if header.prediction_sets is not None:
        yield QUANTILE, header.prediction_sets.data.sha256
    steps, by_label = [header.made_by], bool(header.label_thresholds)
    threshold = any(test and test.below is not None for test in (header.threshold, header.known_test))
    while steps:
        step = steps.pop()
        if step is None or step.command not in {EVAL, FUSE}:
            continue
        if step.command == FUSE:
            steps += [] if "temperature" in step.options | step.results else [m.made_by for m in step.inputs]
            continue
        steps += [model.made_by for model in step.inputs[:1]]
        data = [file.sha256 for file in step.inputs[1:]]
        if threshold and {"threshold_for", "keep_known"} & step.options.keys():
            threshold = False
            yield from ((THRESHOLD, sha256) for sha256 in data[:1])
        if by_label and "label_thresholds" in step.options:
            by_label = False
            yield from ((LABEL_THRESHOLDS, sha256) for sha256 in data[:1])
        fitted = step.options.get("fitted")
        standardized = isinstance(fitted, list | tuple) and ENERGY_DENSITY in fitted
        if header.scale != Temperature():
            yield from ((TEMPERATURE, sha256) for sha256 in data[1 : len(data) - bool(fitted) - standardized])
        if standardized and header.fitted is not None:
            yield from ((STANDARDIZATION, sha256) for sha256 in data[-1:])


def why_invalid(
    model_file: OpenModel, temperature: Temperature, *, shortened: bool, classes: Classes | None = None
) -> str | None:
    """Return why stored thresholds and prediction sets are invalid in this run, or `None` if valid.

    The result follows the words "not valid for", for example "another temperature".

    Args:
        model_file: The model.
        temperature: Temperature of the model in this run.
        shortened: Whether this run has another maximum length of texts.
        classes: Classes of a zero-shot model in this run.
    """
    if stores_other_classes(model_file, classes):
        return "other classes"
    if temperature != model_file.header.scale:
        return "another temperature"
    return "another `--max-length`" if shortened else None


def fit_sets(
    predictions: StoredPredictions,
    labels: Tensor,
    data: Fingerprint,
    rule: SetRule,
) -> PredictionSets:
    """Return prediction sets fitted on a row's predictions of the ID set.

    Args:
        predictions: Predictions on the ID set after temperature scaling.
        labels: Shape (N,), int64.
        data: Name and digest of the ID set.
        rule: Coverage and method of the sets.
    """
    scores = torch.cat(
        [
            at_labels(nonconformity(p, rule.method, penalty=rule.penalty, rank=rule.rank), y)
            for p, y in _parts(predictions, labels)
        ]
    )
    classes = predictions.shape[2] if rule.by_class else None
    return PredictionSets(
        method=rule.method,
        coverage=rule.coverage,
        thresholds=fit_thresholds(scores, labels, rule.method, rule.coverage, classes=classes),
        count=len(labels),
        data=data,
        penalty=rule.penalty,
        rank=rule.rank,
    )


def measure_sets(
    rule: PredictionSets,
    predictions: StoredPredictions,
    labels: Tensor,
    names: Sequence[str],
    data: Fingerprint,
) -> SetNumbers:
    """Return size and coverage of prediction sets on the ID set.

    Args:
        rule: The prediction sets.
        predictions: Predictions on the ID set after temperature scaling.
        labels: Shape (N,), int64.
        names: Names of the C classes.
        data: Name and digest of the ID set.
    """
    parts = [
        (sets.sum(1), sets.gather(1, y.unsqueeze(1)).squeeze(1))
        for p, y in _parts(predictions, labels)
        for sets in [class_sets(p, rule)]
    ]
    sizes, covered = map(torch.cat, zip(*parts, strict=True))
    counts = torch.bincount(labels, minlength=len(names))
    hits = torch.bincount(labels[covered], minlength=len(names))
    present = counts.nonzero().flatten()
    order = (hits.double() / counts.clamp(min=1))[present].sort(stable=True).indices
    return SetNumbers(
        rule=rule,
        is_fitted_here=rule.data.sha256 == data.sha256,
        count=len(labels),
        covered=int(covered.sum()),
        empty=int((sizes == 0).sum()),
        single=int((sizes == 1).sum()),
        mean_size=float(sizes.double().mean()),
        interval=binomial_interval(int(covered.sum()), len(labels)),
        classes=tuple(
            ClassHits(index=i, name=names[i], count=int(counts[i]), hits=int(hits[i]))
            for i in sorted(present[order][:MOST_CLASSES].tolist())
        ),
    )


def set_values(metrics: Sequence[str], sets: SetNumbers | None) -> dict[str, Value]:
    """Return the selected metrics of a row's prediction sets; empty without sets.

    The coverage is left out on the calibration samples, where it holds by construction.
    """
    if sets is None:
        return {}
    low, high = sets.interval
    coverage = Value(value=sets.covered / sets.count, low=low, high=high)
    values = {SET_SIZE: Value(value=sets.mean_size)} | (
        {} if sets.is_fitted_here else {SET_COVERAGE: coverage}
    )
    return {name: values[name] for name in needing(metrics, MetricNeeds.SETS) if name in values}


def _parts(predictions: StoredPredictions, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield mean probabilities, with the rounding of `predict`, and labels in chunks of samples."""
    size = at_once(predictions)
    for part, part_labels in zip(predictions.split(size), labels.split(size), strict=True):
        yield mean_probabilities(part), part_labels
