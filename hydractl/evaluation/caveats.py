"""Warnings about the numbers of a report: reused data, small data sets, and models made with test data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product

import numpy as np
from torch import Tensor

from hydractl.errors import DataError, UsageError
from hydractl.evaluation.guarantees import (
    EVAL,
    LABEL_THRESHOLDS,
    QUANTILE,
    STANDARDIZATION,
    THRESHOLD,
    sources_of_stored,
)
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import merge_samples, unpack_digests
from hydractl.manifest.header import Step, lineage_to
from hydractl.manifest.report import Row, store_temperature_alike
from hydractl.manifest.terms import ID_NAME, SetRule
from hydractl.messages import counted, listed
from hydractl.metrics.classification import CALIBRATED
from hydractl.metrics.compute import Measurement
from hydractl.metrics.conformal import fewest_samples
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_ranking import TPR
from hydractl.metrics.ood_scores import ENERGY_DENSITY, SCORES
from hydractl.metrics.registry import FIT, METRICS, OPTION_NAMES, TEMPERATURE, VAL, needing
from hydractl.prediction.feature_ood import overlap_of_val
from hydractl.prediction.open_inputs import Identity, overlap
from hydractl.scoring.objective import parse_objective

SETS = "--sets"
FEW = 100
"""Sample size below which FPR95 and a fitted temperature are reported as unreliable. With 100 samples, FPR95
changes in steps of 1 % or depends on the 6 hardest samples. Chosen by hand; doubling the limit adds warnings
and changes no numbers."""
REUSE_EFFECTS = {
    TEMPERATURE: "calibration errors will be too low",
    FIT: "OOD metrics of feature-based scores will be too good",
    THRESHOLD: "its error rate will be too low",
    LABEL_THRESHOLDS: "F1 will be too high",
    QUANTILE: "the coverage of prediction sets will be too good",
    VAL: "OOD scores are selected or standardized on the test data",
    STANDARDIZATION: "OOD scores are selected or standardized on the test data",
}
"""Effect on the metrics if the test data are also the data of this option."""
# Tolerance: `TPR * count` may be rounded up past an integer, and `ceil` would then be too large by 1.
SLACK = 1e-9


def data_warnings(
    measurement: Measurement, identities: Mapping[str, Identity], guaranteed: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a warning for each problem of the data sets.

    Args:
        measurement: Metrics, scores and data sets of the run.
        identities: Sample digests of each data set, by name: `id`, names of options, and names of OOD sets.
        guaranteed: Options with a statistical guarantee, such as `--sets`.
    """
    contents = {name: identity.content for name, identity in identities.items()}
    yield from _shared(measurement, contents, guaranteed)
    if {FIT, VAL} <= contents.keys() and ENERGY_DENSITY in measurement.scores:
        yield from filter(None, [overlap_of_val(contents[VAL], contents[FIT])])
    if len(measurement.ood_val) == 1:
        yield (
            f"the OOD score is selected on `{measurement.ood_val[0]}` only; the best score for near OOD data may "
            "be poor for far OOD data, and vice versa; give `--ood-val` data of both kinds"
        )
    if TEMPERATURE in contents and (count := len(contents[TEMPERATURE])) < FEW:
        yield f"`--temperature` is fitted on {counted(count, 'sample')}, which gives a rough estimate; use at least {FEW}"
    for name in measurement.tested if "fpr95" in measurement.metrics else ():
        count = len(contents[name])
        if count < FEW:
            yield f"{_option_text(name)}: with {counted(count, 'sample')}, FPR95 {_fpr_resolution_text(name, count)}; use at least {FEW}"
    for name in measurement.tested if measurement.resampling.resamples else ():
        if len(contents[name]) == 1:
            yield (
                f"{identities[name].fingerprint.reference}: has only one sample, so bootstrap intervals on it are too narrow"
            )


def check_validation_is_not_test(measurement: Measurement, identities: Mapping[str, Identity]) -> None:
    """Raise if an OOD score would be selected on its test data.

    Raises:
        DataError: If a validation set and a test set have the same samples.
    """
    for validation in (VAL, *measurement.ood_val) if measurement.ood_val else ():
        for tested in measurement.tested:
            (selected_on, content), (test, test_content) = identities[validation], identities[tested]
            if np.array_equal(np.unique(content), np.unique(test_content)):
                raise DataError(
                    f"the validation data `{selected_on.reference}` are also the test data `{test.reference}`",
                    hint="validate on another split, or on other OOD data",
                )


def check_set_sample_count(rule: SetRule, labels: Tensor, names: Sequence[str]) -> None:
    """Raise if the ID set is too small for the coverage of prediction sets.

    Args:
        rule: Coverage and method of the sets.
        labels: Classes of the ID set, shape (N,).
        names: Names of the classes.

    Raises:
        DataError: If there are too few samples. The message has the required number.
    """
    coverage, by_class = rule.coverage, rule.by_class
    fewest, counts = fewest_samples(coverage), Counter(labels.tolist())
    requirement = f"`{SETS} {coverage:g}` needs at least {counted(fewest, 'sample')}"
    if not by_class and len(labels) < fewest:
        raise DataError(
            f"{requirement}, but `--data` has {len(labels)}", hint="use more samples, or a lower coverage"
        )
    few = [f"{name} ({counts[i]})" for i, name in enumerate(names) if counts[i] < fewest]
    if by_class and few:
        raise DataError(
            f"{requirement} of each class with `--sets-by-class`, but `--data` has fewer: {_first(few)}",
            hint="use more samples or a lower coverage, or leave out `--sets-by-class`",
        )


def temperature_warnings(
    names: Sequence[str], model_files: Sequence[Sequence[OpenModel]], metrics: Sequence[str]
) -> Iterator[str]:
    """Yield a warning if only some rows store a temperature and calibration metrics are compared.

    Do not call this function if `eval` fits a temperature for every row.

    Args:
        names: Names of the rows.
        model_files: Models of each row.
        metrics: Names of the metrics.
    """
    stored = [tuple(model.header.temperature for model in models) for models in model_files]
    compared = [METRICS[name].column or name for name in CALIBRATED if name in metrics]
    if len(stored) == 1 or not compared or store_temperature_alike(*stored):
        return
    rows = [*zip(names, stored, strict=True)]
    scaled = [name for name, temperatures in rows if {*temperatures} != {1.0}]
    unscaled = [name for name, temperatures in rows if 1.0 in temperatures]
    yield (
        f"the comparison of {listed(compared)} is unfair: {_first(scaled)} "
        f"{'store' if len(scaled) > 1 else 'stores'} a temperature, {_first(unscaled)} "
        f"{'do' if len(unscaled) > 1 else 'does'} not; add `--temperature DATA` to fit one for each row"
    )


def _first(rows: Sequence[str]) -> str:
    """Return the first texts as a list in words, with the number of omitted texts."""
    few = 3
    return listed(rows if len(rows) <= few else [*rows[:few], counted(len(rows) - few, "other")])


def row_warnings(
    measurement: Measurement,
    row: Row,
    models: Sequence[OpenModel],
    identities: Mapping[str, Identity],
    guaranteed: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a warning for each problem of a row.

    Problems are scores without meaning for a single model, and test samples that were used to make the
    models.

    Args:
        measurement: Metrics, scores and data sets of the run.
        row: The measured row.
        models: Models of the row.
        identities: As in `data_warnings`.
        guaranteed: As in `data_warnings`.
    """
    for name in measurement.scores if row.members == 1 else ():
        if name in SCORES and SCORES[name].of_single_model:
            yield f"{row.name}: `{name}` of a single model is {SCORES[name].of_single_model}"
    recorded = merge_samples(*(model.header.samples for model in models))
    for name in measurement.tested:
        (fingerprint, content), used = identities[name], dict[tuple[str, str], np.ndarray]()
        for verb, effect, sha256 in _uses(row, models, recorded):
            is_same_set = (
                sha256 not in recorded and sha256 == fingerprint.sha256
            )  # Earlier releases record no samples, so only the digest of the whole data set can be compared.
            overlap = np.isin(content, unpack_digests(recorded.get(sha256, ""))) | is_same_set
            used[verb, effect] = used.get((verb, effect), False) | overlap
        for (verb, effect), overlap in used.items():
            if overlap.any():
                replaced = REUSE_EFFECTS[THRESHOLD], REUSE_EFFECTS[QUANTILE]
                lapses = (
                    _promise(guaranteed)
                    if name == ID_NAME and effect.removeprefix(": ") not in replaced
                    else ""
                )
                yield f"{row.name}: {verb} {overlap.sum()} of {len(content)} samples of {_option_text(name)}{effect}{lapses}"


def _uses(
    row: Row, models: Sequence[OpenModel], recorded: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield (description, effect on results, data set's digest) for each use of data to make a row.

    For example ("its temperature was fitted on", ": calibration errors will be too low", "sha256:...").
    """
    for scores in row.stored_scores:
        yield "its OOD scores were fitted on", f": {REUSE_EFFECTS[FIT]}", scores.data.sha256
    for option, sha256 in chain.from_iterable(sources_of_stored(model.header) for model in models):
        yield f"its {option} was fitted on", f": {REUSE_EFFECTS[option]}", sha256
    steps = {step.model_dump_json(): step for model in models for step in lineage_to(model.header.made_by)}
    for step in sorted(steps.values(), key=lambda step: step.command):
        # `sources_of_stored` above yields the data of `eval --save-model`; twice would repeat the warning
        for data in step.inputs if step.command != EVAL else ():
            yield f"`hydractl {step.command}` used", ", so results on new data may be worse", data.sha256
    for sha256 in recorded.keys() - {data.sha256 for step in steps.values() for data in step.inputs}:
        yield "an earlier command used", ", so results on new data may be worse", sha256


def _promise(guaranteed: Sequence[str]) -> str:
    """Return the end of a warning: the guarantees that do not hold; empty without guarantees."""
    return (
        f"; the guarantee of {listed([f'`{option}`' for option in guaranteed])} does not hold"
        if guaranteed
        else ""
    )


def tuned_on_ood(models: Sequence[OpenModel]) -> bool:
    """Return whether the models' lineages have a step with an objective on OOD data."""
    return any(_reads_ood(step) for model in models for step in lineage_to(model.header.made_by))


def _reads_ood(step: Step) -> bool:
    objective = step.options.get("objective")
    try:
        return isinstance(objective, str) and parse_objective(objective).needs_ood
    except UsageError:  # The objective is from a later release.
        return False


def _shared(
    measurement: Measurement, contents: Mapping[str, np.ndarray], guaranteed: Sequence[str]
) -> Iterator[str]:
    """Yield a warning for each pair of data sets with common samples."""
    tested = contents[ID_NAME]
    for name, content in contents.items():
        if name == ID_NAME:
            continue
        twice = int(np.isin(content, tested).sum())
        if twice and name in REUSE_EFFECTS and name not in measurement.tested:
            yield f"{overlap(f'--{OPTION_NAMES.get(name, name)}', content, '--data', tested)}: {REUSE_EFFECTS[name]}{_promise(guaranteed)}"
        elif twice and needing(measurement.metrics, MetricNeeds.OOD):
            yield (
                f"{twice} of {len(content)} samples of {_option_text(name)} are also in `--data`, so OOD metrics on it "
                "are too low"
            )
    for validation, test in product(measurement.ood_val, measurement.ood):
        if shared := overlap(validation, contents[validation], test, contents[test]):
            yield f"{shared}: {REUSE_EFFECTS[VAL]}"


def _fpr_resolution_text(name: str, count: int) -> str:
    """Return the end of a sentence on how few samples determine FPR95.

    Args:
        name: Name of the data set.
        count: Number of samples.

    Returns:
        For 50 samples, `changes in steps of 2 %` on the ID set, and `depends on the 3 hardest samples` on an
        OOD set.
    """
    if name == ID_NAME:
        return f"changes in steps of {100 / count:.2g} %"
    missed = count - math.ceil(TPR * count - SLACK)
    return f"depends on the {missed + 1} hardest samples"


def _option_text(name: str) -> str:
    return "`--data`" if name == ID_NAME else f"`{name}`"
