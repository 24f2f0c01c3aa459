"""Rows of `eval`: predictions of a row's models on every data set, and measurements on these predictions.

Axes: M members, N samples, C classes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from hydractl import progress
from hydractl.data.datasets import Dataset, ImageSet, TextSet, of_kind
from hydractl.data.preprocess import to_channels
from hydractl.data.reference import DataRef
from hydractl.errors import UsageError, shortened
from hydractl.evaluation.data import EvalData
from hydractl.evaluation.guarantees import stores_other_classes, tested_scores
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import Value
from hydractl.manifest.guarantees import MOST_LETTERS, Example, Examples, KnownTest, Threshold
from hydractl.manifest.header import Header
from hydractl.manifest.report import Line, Origin, Report, Row
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.metrics.compute import Measurement, means, measure, ood_score
from hydractl.metrics.curves import by_class, curves_of
from hydractl.metrics.per_sample import StoredPredictions, at_once
from hydractl.metrics.registry import VAL
from hydractl.prediction.class_names import Classes
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.inference import PreparedData
from hydractl.prediction.predictions import Bounds
from hydractl.prediction.run_models import Scaling, answers
from hydractl.processes.distributed import ProcessGroup

SELECTION_METRIC = "auroc"
"""Metric on validation data that selects an OOD score."""


class LoadedRow(NamedTuple):
    """A row while its models are in memory.

    Attributes:
        named: Name of the row and references of its models.
        model_files: Opened checkpoints. A plugin may derive one predictor from several.
        predictors: Models that predict, without OOD scores.
        predictions: Predictions on each data set after temperature scaling; empty on ranks other than 0.
        scaling: Temperature of the row.
        header: Header of the run's first model with the classes of the run, and the row's thresholds and
            temperatures.
    """

    named: NamedModels
    model_files: Sequence[OpenModel]
    predictors: Sequence[Predictor]
    predictions: Mapping[str, StoredPredictions]
    scaling: Scaling
    header: Header


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """Models and data of one `eval` run.

    Attributes:
        named: Names of the rows and references of their models.
        model_files: Opened checkpoints of each row.
        data: Data sets.
        measurement: Metrics, scores and resamples of all rows.
        open_data: Opens another data set with the options of the run, and appends warnings to the list.
        device: Device of the models.
        team: Process group.
        folder: Folder for predictions that are too large for memory.
        caveats: Warnings for the report.
    """

    named: Sequence[NamedModels]
    model_files: Sequence[Sequence[OpenModel]]
    data: EvalData
    measurement: Measurement
    open_data: Callable[[DataRef, list[str]], Dataset]
    device: torch.device
    team: ProcessGroup
    folder: Path
    caveats: list[str] = field(default_factory=list)

    def warn(self, caveats: Iterable[str]) -> None:
        """Print warnings and add them to the report."""
        for caveat in caveats:
            self.caveats.append(caveat)
            progress.warn(caveat)

    def predict(self, row: Sequence[Predictor], inputs: PreparedData) -> StoredPredictions | None:
        """Return the predictions of a row on rank 0, and `None` on other ranks; see `answers`."""
        return answers(row, inputs, team=self.team, folder=self.folder)


class RowMeasurer:
    """Measurements that a plugin adds to an `eval` run. Subclasses override the methods that they need.

    Attributes:
        scopes: Names of the plugin's scopes of labelled data, for `--fail-if` conditions.
    """

    scopes: Sequence[str] = ()

    def open_data(self, run: Evaluation) -> None:
        """Open the plugin's data sets. Called before models are loaded."""

    def derive(
        self,
        run: Evaluation,
        named: NamedModels,
        predictors: Sequence[Predictor],
        model_files: Sequence[OpenModel],
    ) -> Sequence[Predictor]:
        """Return the models that predict for a row: the row's own models, unless a subclass derives others."""
        del run, named, model_files
        return predictors

    def measure(self, run: Evaluation, row: LoadedRow) -> Callable[[Row], Row] | None:
        """Measure a row while its models are loaded. Called on all ranks.

        Returns:
            A function that adds the measurements to a row of the report, called on rank 0; `None` without
            measurements.
        """

    def complete(self, report: Report) -> Report:
        """Return the report with options and fields of the plugin."""
        return report


def scaling_of(
    run: Evaluation,
    name: str,
    predictors: Sequence[Predictor],
    model_files: Sequence[OpenModel],
    number: float | None,
) -> Scaling:
    """Return the temperature of a row.

    The temperature is fitted on the data of `--temperature` if they exist; else it is the given number, or no
    temperature for `None`. Ranks other than 0 do not fit.

    Args:
        run: The run.
        name: Name of the row, for messages.
        predictors: Models that predict.
        model_files: Opened checkpoints of the row.
        number: Given temperature, or `None`.
    """
    if run.data.temperature_data is not None:
        inputs, labels = run.data.temperature_data
        predictions = run.predict(predictors, inputs)
        if predictions is not None:
            header, stored = header_of(run, model_files, Scaling()), stored_temperatures(model_files)
            return Scaling.fit(predictions, labels, row=name, header=header, stored=stored)
    return Scaling(temperature=None if number is None else Temperature(number))


def stored_temperatures(model_files: Sequence[OpenModel]) -> tuple[Temperature, ...]:
    """Return the stored temperature of each model."""
    return tuple(model.header.scale for model in model_files)


def header_of(run: Evaluation, model_files: Sequence[OpenModel], scaling: Scaling) -> Header:
    """Return the header of the run's first model with classes of the run, and thresholds of a row.

    The temperatures are those of the row too. Label thresholds are empty if the models of the row differ in
    them.
    """
    thresholds, *others = {model.header.label_thresholds for model in model_files}
    update = {
        "labels": run.data.class_names,
        "label_thresholds": () if others else thresholds,
        **scaling.on_top_of(stored_temperatures(model_files)).fields,
    }
    return run.model_files[0][0].header.model_copy(update=update)


def with_curves(
    row: Row,
    loaded: LoadedRow,
    answers: Mapping[str, Tensor],
    labels: Tensor,
    measurement: Measurement,
    first: Row | None,
) -> Row:
    """Return a row with curves, results by class, and origins of its models.

    Args:
        row: The row.
        loaded: Models and predictions of the row.
        answers: Result of `per_sample.answers` on the ID set.
        labels: Class indices of the ID set, shape (N,).
        measurement: Metrics, scores and data sets of the run.
        first: The first row, which determines the classes to show. `None` if this row is the first.
    """
    ood = {name: loaded.predictions[name] for name in measurement.ood}
    classes = None
    if not loaded.header.architecture.task.by_label:
        like = None if first is None else first.by_class
        classes = by_class(
            answers["predicted"], labels[labels >= 0], loaded.header.labels, same_classes_as=like
        )
    return row.model_copy(
        update={
            "curves": curves_of(loaded.predictions[ID_NAME], answers, ood, measurement.scores[0]),
            "by_class": classes,
            "origins": tuple(
                Origin(name=model.as_input().name, masks=model.header.masks, made_by=model.header.made_by)
                for model in loaded.model_files
            ),
        }
    )


def with_threshold_curve(row: Row, curve: Line | None) -> Row:
    """Return a row with the risk-coverage curve of its threshold, if the row has curves and this curve differs."""
    if row.curves is None or curve in (None, row.curves.risk):
        return row
    return row.model_copy(update={"curves": row.curves.model_copy(update={"threshold": curve})})


def check_fitted_scores(
    scores: Sequence[str], model_files: Sequence[Sequence[OpenModel]], classes: Classes | None = None
) -> None:
    """Raise if a model does not store a required feature-based OOD score for its classes.

    Args:
        scores: Feature-based scores that are not fitted in this run.
        model_files: Models of each row.
        classes: Classes of zero-shot models. `None` if they are unknown yet, or no model is zero-shot.

    Raises:
        UsageError: If a model lacks a score, or stores scores for other classes.
    """
    for model in chain.from_iterable(model_files if scores else ()):
        fitted = model.header.fitted
        missing = [score for score in scores if fitted is None or score not in fitted.scores]
        if missing:
            why = f"`{missing[0]}` is feature-based and was not fitted for this model"
        elif stores_other_classes(model, classes):
            why = "its feature-based OOD scores apply only to the classes that it stores"
        else:
            continue
        raise UsageError(
            f"{model.reference}: {why}",
            hint="add `--train DATA`, the labelled data that the model was trained on",
        )


def best_on_validation(
    measurement: Measurement, predictions: Mapping[str, StoredPredictions]
) -> tuple[dict[str, dict[str, Value]], str | None]:
    """Return each score's AUROC on each OOD validation set, and the score with the highest mean AUROC.

    Of equal scores the first is selected. Without validation sets the result is ({}, `None`).
    """
    sets = measurement.ood_val
    if not sets:
        return {}, None
    numbers = measure(
        predictions[VAL],
        None,
        {name: predictions[name] for name in sets},
        metrics=(SELECTION_METRIC,),
        scores=measurement.scores,
        resampling=measurement.resampling,
    ).ood
    by_score = zip(measurement.scores, means(numbers, {VAL: sets})[VAL].values(), strict=True)
    return numbers, max(by_score, key=lambda pair: pair[1])[0]


DISAGREEMENT = "mi"
SIDE = 96
"""Maximum side of a thumbnail in pixels; smaller images keep their size. Chosen by hand; doubling the side
quadruples the size of thumbnails in reports, which may then exceed `MOST_PICTURE`."""
QUALITY = 90
"""JPEG quality of a thumbnail. Chosen by hand; Pillow's scale ends at 100, and lower values give smaller
reports."""


def accepted_answers(
    predictions: StoredPredictions, known_test: KnownTest | None, threshold: Threshold | None
) -> dict[str, Tensor]:
    """Return under the key `accepted` whether each answer passes both tests, shape (N,), boolean.

    The result is empty if the threshold has no bound, or if there is no test.
    """
    bounds = Bounds.of(known_test, threshold)
    accepted, _ = bounds.decide({name: tested_scores(predictions, name) for name, _ in filter(None, bounds)})
    return {} if accepted is None else {"accepted": accepted}


def examples_of(
    dataset: Dataset,
    predictions: StoredPredictions,
    answers: Mapping[str, Tensor],
    labels: Tensor,
    names: Sequence[str],
    *,
    most: int,
) -> Examples:
    """Return example inputs of a row: five answers, the highest disagreements, the most confident mistakes.

    A row with a single member has no disagreements.

    Args:
        dataset: The ID set.
        predictions: Predictions of the row on the ID set.
        answers: Result of `per_sample.answers`, and of `accepted_answers`.
        labels: Class indices, shape (N,), int64.
        names: Names of the classes.
        most: Maximum number of examples of each type.
    """
    accepted = answers.get("accepted")
    hits = answers["hits"].bool()
    rejected = [] if accepted is None else (~accepted & ~hits).nonzero().flatten()[:1].tolist()
    evenly = torch.linspace(0, len(hits) - 1, 5).long().tolist()
    places = evenly if {*rejected} <= {*evenly} else evenly[:-1] + rejected
    votes = torch.cat([part.log_probs.argmax(-1) for part in predictions.split(at_once(predictions))], 1)
    disagreement = ood_score(predictions, DISAGREEMENT) if len(votes) > 1 else None

    def example(place: int) -> Example:
        key = dataset.key(place)
        return Example(
            name="/".join(Path(key).parts[-2:]) if isinstance(key, str) else f"row {key}",
            label=names[int(labels[place])],
            answer=names[int(answers["predicted"][place])],
            confidence=float(answers["confidence"][place]),
            disagreement=None if disagreement is None else float(disagreement[place]),
            votes=tuple(names[vote] for vote in votes[:, place].tolist()),
            text=_text(dataset, place) if isinstance(dataset, TextSet) else None,
            picture=None
            if isinstance(dataset, TextSet)
            else _thumbnail(of_kind(dataset, ImageSet).image(place)),
            accepted=None if accepted is None else bool(accepted[place]),
        )

    return Examples(
        answers=tuple(map(example, dict.fromkeys(places))),
        disagreements=()
        if disagreement is None
        else tuple(map(example, _highest(disagreement, disagreement > 0, most))),
        mistakes=tuple(map(example, _highest(answers["confidence"], ~hits, most))),
    )


def _highest(values: Tensor, among: Tensor, most: int) -> list[int]:
    """Return the indices of the highest values in descending order, with stable ties.

    Args:
        values: Shape (N,).
        among: Boolean mask of allowed indices, shape (N,).
        most: Maximum number of indices.
    """
    order: list[int] = (
        values.masked_fill(~among, -torch.inf).sort(descending=True, stable=True).indices.tolist()
    )
    return order[: min(most, int(among.sum()))]


def _text(texts: TextSet, place: int) -> str:
    text = texts.texts[place]
    return shortened(text if isinstance(text, str) else " / ".join(text), MOST_LETTERS)


def _thumbnail(image: Image.Image) -> str:
    small = to_channels(image, 3).copy()
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, subsampling=0)
    return base64.b64encode(file.getvalue()).decode()
