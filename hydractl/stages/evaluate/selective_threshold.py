"""Thresholds and prediction sets that keep a risk, and a copy of the model that stores fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydractl import progress
from hydractl.checkpoint import Checkpoint, spec_of, tensor_bytes, write_checkpoint
from hydractl.errors import UsageError
from hydractl.families.load import OpenModel
from hydractl.manifest.document import Fingerprint, Value
from hydractl.manifest.guarantees import ClassHits, PredictionSets, SetNumbers, Threshold
from hydractl.manifest.header import FittedScores, Header, Temperature, samples_of
from hydractl.manifest.report import Row
from hydractl.manifest.terms import ID_NAME, MOST_CLASSES
from hydractl.metrics.compute import scored
from hydractl.metrics.conformal import binomial_interval, class_sets, fit_thresholds, nonconformity
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import ENERGY_DENSITY, VERSION, is_fitted
from hydractl.metrics.per_sample import StoredPredictions, at_labels, at_once, mean_probabilities
from hydractl.metrics.registry import FIT, SET_COVERAGE, SET_SIZE, TEMPERATURE, VAL, needing
from hydractl.metrics.selective import accepted_and_wrong, errors_among_accepted, label_thresholds
from hydractl.output.publish import Sink
from hydractl.prediction.class_names import Classes
from hydractl.prediction.feature_ood import Scores
from hydractl.prediction.open_inputs import Identity
from hydractl.prediction.predictions import answered_classes
from hydractl.provenance.output import make_step
from hydractl.stages.evaluate.config import SETS, EvalConfig, SetOptions
from hydractl.stages.evaluate.fail_if import OPTION, risk_text

FUSE = "fuse"
"""Command that copies what the members store."""
THRESHOLD, LABEL_THRESHOLDS, QUANTILE = "threshold", "choice of label thresholds", "conformal quantile"
STANDARDIZATION = f"standardization of `{ENERGY_DENSITY}`"


def label_thresholds_of(
    config: EvalConfig, predictions: StoredPredictions, labels: Tensor
) -> tuple[float, ...]:
    """Return the thresholds of a row on the probabilities of labels; none if none are asked for."""
    if not config.label_thresholds:
        return ()
    parts = [mean_probabilities(part)[..., 1] for part in predictions.split(at_once(predictions))]
    return label_thresholds(torch.cat(parts), labels)


def threshold_of(
    config: EvalConfig,
    score: str,
    predictions: StoredPredictions,
    labels: Tensor,
    by_label: Sequence[float] = (),
    *,
    several: bool = False,
) -> Threshold | None:
    """Return the threshold of a row on an OOD score, without a bound if none keeps the risk; None if none is asked for.

    An input of several labels or words is answered wrongly if one of them is; `by_label` are the thresholds of labels.
    """
    if config.threshold_for is None:
        return None
    known = predictions.scores.get(score)
    hits = torch.empty(len(labels), dtype=torch.bool)
    scores = torch.empty(len(labels)) if known is None else known
    begin = 0
    for part in predictions.split(at_once(predictions)):
        end = begin + part.shape[1]
        right = answered_classes(part, by_label if several else None) == labels[begin:end]
        hits[begin:end] = (right | (labels[begin:end] < 0)).view(len(right), -1).all(1)
        if known is None:
            scores[begin:end] = scored(part, score)
        begin = end
    risk, delta = config.threshold_for, config.chance
    selected = (
        accepted_and_wrong(scores, hits, risk=risk)
        if delta is None
        else errors_among_accepted(scores, hits, risk=risk, delta=delta)
    )
    return Threshold(
        score=score,
        risk=risk,
        guarantee=config.promised,
        delta=delta,
        count=len(labels),
        version=VERSION if is_fitted(score) else 1,
        **selected._asdict(),
    )


def check_stores(opened: OpenModel, classes: Classes | None) -> None:
    """Refuse a model that does not store the classes that it is asked about.

    Raises:
        UsageError: If it does not.
    """
    if stores_other_classes(opened, classes):
        raise UsageError(
            f"`--store`: {opened.reference} stores other classes, or none",
            hint="fuse the members with `--classes` and `--template` first",
        )


def stores_other_classes(opened: OpenModel, classes: Classes | None) -> bool:
    """Return whether a zero-shot model is asked about other classes than it stores, in other words or in other sentences."""
    prompting = opened.header.prompting
    if classes is None or prompting is None:
        return False
    return (classes.names, classes.templates) != (opened.header.labels, prompting.templates)


def header_of_copy(
    config: EvalConfig, opened: OpenModel, row: Row, data: Mapping[str, Identity], scores: Scores | None
) -> Header:
    """Return the header of the copy that `--store` writes, with temperature, threshold, prediction sets and fitted OOD scores.

    Args:
        config: Configuration of the run.
        opened: The model.
        row: Its row, the first of the run.
        data: Data sets of the run, by name.
        scores: Scores that were fitted; None keeps the stored scores.
    """
    header, update = opened.header, _header_changes(config, opened, row, data)
    scale = header.model_copy(update=update).scale
    why = why_lapses(config, opened, scale)
    if config.threshold_for is None and header.threshold is not None:
        refitted = scores is not None and is_fitted(header.threshold.score)
        if reason := why or ("newly fitted scores" if refitted else None):
            progress.warn(
                f"{opened.reference}: its threshold is not kept: it is not valid for {reason}; find one with `{OPTION}`"
            )
        else:
            update["threshold"] = header.threshold
    if header.label_thresholds and not config.label_thresholds:
        if scale == header.scale:
            update["label_thresholds"] = header.label_thresholds
        else:
            progress.warn(
                f"{opened.reference}: its label thresholds are not kept, as they are not valid for another temperature; "
                "choose others with `--label-thresholds`"
            )
    if config.set_options.sets is None and header.prediction_sets is not None:
        if why:
            progress.warn(
                f"{opened.reference}: its prediction sets are not kept: they are not valid for {why}; fit them with `{SETS}`"
            )
        else:
            update["prediction_sets"] = header.prediction_sets
    if scores is not None:
        fitted = FittedScores(
            scores=tuple(scores.fitted),
            data=data[FIT].fingerprint,
            temperature=scores.temperature,
            version=VERSION,
        )
        update["fitted"] = fitted
    return header.model_copy(update=update)


def write_copy(file: Sink, checkpoint: Checkpoint, header: Header, scores: Scores | None) -> None:
    """Write the copy, with the weights of the checkpoint byte for byte; scores as of `header_of_copy`."""
    tensors = {} if scores is None else scores.tensors()
    beside = checkpoint.beside if scores is None else {n: spec_of(t) for n, t in tensors.items()}
    write_checkpoint(
        file,
        checkpoint.specs | beside,
        lambda name: [tensor_bytes(tensors[name]) if name in tensors else checkpoint.spans[name]],
        header=header,
    )


def sources_of_stored(header: Header) -> Iterator[tuple[str, str]]:
    """Yield the digests of data that `eval --store` found on what a model stores, each after the name of it.

    Temperatures come on top of one another, a threshold in place of another, and other weights drop both; but `fuse` keeps a
    temperature that all members store.
    """
    if header.prediction_sets is not None:
        yield QUANTILE, header.prediction_sets.data.sha256
    steps, by_label = [header.made_by], bool(header.label_thresholds)
    threshold = header.threshold is not None and header.threshold.below is not None
    while steps:
        step = steps.pop()
        if step is None or step.command not in {EvalConfig.COMMAND, FUSE}:
            continue
        if step.command == FUSE:
            steps += [] if "temperature" in step.options | step.results else [m.made_by for m in step.inputs]
            continue
        steps += [model.made_by for model in step.inputs[:1]]
        data = [file.sha256 for file in step.inputs[1:]]
        if threshold and "threshold_for" in step.options:
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


def why_lapses(
    config: EvalConfig, opened: OpenModel, temperature: Temperature, classes: Classes | None = None
) -> str | None:
    """Return what of that which a model's threshold and prediction sets were found with is another now, None if nothing is."""
    if stores_other_classes(opened, classes):
        return "other classes"
    if temperature != opened.header.scale:
        return "another temperature"
    return None if config.max_length is None else "another `--max-length`"


def _header_changes(
    config: EvalConfig, opened: OpenModel, row: Row, data: Mapping[str, Identity]
) -> dict[str, Any]:
    """Return what of the header is another in the copy; the step names ID data first, as `sources_of_stored` reads it."""
    temperature = row.scale.rounded() if TEMPERATURE in row.values else opened.header.scale
    roles = (
        ID_NAME,
        *(TEMPERATURE,) * (config.temperature_data is not None),
        *(FIT,) * (config.fit is not None),
        *(VAL,) * (config.standardized_on is not None),
    )
    inputs = [data[role].as_input() for role in roles]
    step = make_step(
        config,
        family=opened.family,
        options={
            "temperature": config.given_temperature,
            "threshold_for": risk_text(config.threshold_for),
            "label_thresholds": config.label_thresholds or None,
            "guarantee": None if config.has_confidence else config.promised.value,
            "delta": config.chance,
            **config.set_options.recorded,
            "ood_score": None if row.threshold is None else row.threshold.score,
            "fitted": config.fitted if config.fit is not None else None,
            "max_length": config.max_length,
        },
        inputs=[opened.as_input(), *inputs],
        results={"temperature": temperature.common}
        | ({} if row.threshold is None else {"coverage": row.threshold.coverage}),
    )
    fitted = row.sets.rule if row.sets is not None and config.set_options.sets is not None else None
    return {
        "base": opened.base,
        **temperature.fields,
        "threshold": row.threshold,
        "label_thresholds": row.label_thresholds,
        "prediction_sets": fitted,
        "samples": samples_of(inputs, opened.header),
        "made_by": step,
    }


def fit_sets(
    options: SetOptions, predictions: StoredPredictions, labels: Tensor, data: Fingerprint
) -> PredictionSets | None:
    """Return the prediction sets of a row, fitted on its predictions of the ID set; None if none are asked for."""
    if options.sets is None:
        return None
    method, penalties = options.method, options.penalties
    scores = torch.cat(
        [at_labels(nonconformity(p, method, **penalties), y) for p, y in _parts(predictions, labels)]
    )
    classes = predictions.shape[2] if options.sets_by_class else None
    return PredictionSets(
        method=method,
        coverage=options.sets,
        thresholds=fit_thresholds(scores, labels, method, options.sets, classes=classes),
        count=len(labels),
        data=data,
        **penalties,
    )


def measure_sets(
    rule: PredictionSets,
    predictions: StoredPredictions,
    labels: Tensor,
    names: Sequence[str],
    data: Fingerprint,
) -> SetNumbers:
    """Return what prediction sets are like on the ID set.

    Args:
        rule: Which sets.
        predictions: Of the ID set, scaled.
        labels: Shape (N,), int64.
        names: Of the C classes.
        data: The ID set.
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
    """Return the selected metrics of a row's prediction sets; on the samples of their fit no coverage, which holds by construction."""
    if sets is None:
        return {}
    low, high = sets.interval
    coverage = Value(value=sets.covered / sets.count, low=low, high=high)
    values = {SET_SIZE: Value(value=sets.mean_size)} | (
        {} if sets.is_fitted_here else {SET_COVERAGE: coverage}
    )
    return {name: values[name] for name in needing(metrics, MetricNeeds.SETS) if name in values}


def _parts(predictions: StoredPredictions, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield mean probabilities, rounded as `predict` has them, and labels in chunks of samples."""
    size = at_once(predictions)
    for part, part_labels in zip(predictions.split(size), labels.split(size), strict=True):
        yield mean_probabilities(part), part_labels
