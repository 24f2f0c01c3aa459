"""One row of the table of `eval`: its models are loaded, predict every data set, and are measured.

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
from hydractl.evaluation.guarantees import stores_other_classes
from hydractl.evaluation.options import NamedModels
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import Value
from hydractl.manifest.guarantees import MOST_LETTERS, Example, Examples
from hydractl.manifest.header import Header
from hydractl.manifest.report import Origin, Report, Row
from hydractl.manifest.terms import ID_NAME, Temperature
from hydractl.metrics.compute import Measurement, means, measure, scored
from hydractl.metrics.curves import by_class, curves_of
from hydractl.metrics.per_sample import StoredPredictions, at_once
from hydractl.metrics.registry import VAL
from hydractl.prediction.answers import Scaling, answers
from hydractl.prediction.class_names import Classes
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.inference import PreparedData
from hydractl.processes.distributed import ProcessGroup

BY = "auroc"
"""Metric that selects among OOD scores on validation data."""


class LoadedRow(NamedTuple):
    """A row while its models are loaded.

    Attributes:
        named: Name of the row and references of its models.
        opened: The opened models. Several may make one model that predicts.
        predictors: The models that predict, without OOD scores.
        predictions: Scaled predictions on each data set; empty in processes that do not lead.
        scaling: Temperature of the row.
        header: Header of the first model with the classes of the run, and the row's thresholds and temperatures.
    """

    named: NamedModels
    opened: Sequence[OpenModel]
    predictors: Sequence[Predictor]
    predictions: Mapping[str, StoredPredictions]
    scaling: Scaling
    header: Header


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """A run of `eval`: models and data of all rows.

    Attributes:
        named: Names of the rows and references of their models.
        opened: The opened models of each row.
        data: The data sets.
        measurement: The numbers of every row.
        open_data: Opens another data set by its reference, as the options of the run say. Appends warnings to the list.
        device: Device of the models.
        team: The processes.
        folder: Folder for predictions that are too large for memory.
        caveats: Warnings for the report.
    """

    named: Sequence[NamedModels]
    opened: Sequence[Sequence[OpenModel]]
    data: EvalData
    measurement: Measurement
    open_data: Callable[[DataRef, list[str]], Dataset]
    device: torch.device
    team: ProcessGroup
    folder: Path
    caveats: list[str] = field(default_factory=list)

    def warn(self, caveats: Iterable[str]) -> None:
        """Show warnings, and add them to the report."""
        for caveat in caveats:
            self.caveats.append(caveat)
            progress.warn(caveat)

    def predict(self, row: Sequence[Predictor], inputs: PreparedData) -> StoredPredictions | None:
        """Return the predictions of a row in the process that leads, None in the others; see `answers`."""
        return answers(row, inputs, team=self.team, folder=self.folder)


class RowMeasurer:
    """Measurements of a plugin in one run of `eval`. A subclass overrides methods as needed.

    Attributes:
        scopes: Names of the scopes in which labelled data are also measured, for conditions.
    """

    scopes: Sequence[str] = ()

    def open_data(self, run: Evaluation) -> None:
        """Open data beside those of the options, before models are loaded."""

    def derive(
        self,
        run: Evaluation,
        named: NamedModels,
        predictors: Sequence[Predictor],
        opened: Sequence[OpenModel],
    ) -> Sequence[Predictor]:
        """Return the models that predict for a row."""
        del run, named, opened
        return predictors

    def measure(self, run: Evaluation, row: LoadedRow) -> Callable[[Row], Row] | None:
        """Measure a row while its models are loaded, in every process.

        Returns:
            A function that adds the measurements to the row of the report, in the process that leads; None if there are none.
        """

    def complete(self, report: Report) -> Report:
        """Return the report with options and fields of the plugin."""
        return report


def scaling_of(
    run: Evaluation,
    name: str,
    predictors: Sequence[Predictor],
    opened: Sequence[OpenModel],
    number: float | None,
) -> Scaling:
    """Return the temperature of a row: fitted on the held-out split of the run, else the given number, else none."""
    if run.data.temperature_data is not None:
        inputs, labels = run.data.temperature_data
        predictions = run.predict(predictors, inputs)
        if predictions is not None:
            header, stored = header_of(run, opened, Scaling()), stored_temperatures(opened)
            return Scaling.fit(predictions, labels, row=name, header=header, stored=stored)
    return Scaling(temperature=None if number is None else Temperature(number))


def stored_temperatures(opened: Sequence[OpenModel]) -> tuple[Temperature, ...]:
    """Return the temperature that each model stores."""
    return tuple(model.header.scale for model in opened)


def header_of(run: Evaluation, opened: Sequence[OpenModel], scaling: Scaling) -> Header:
    """Return the header of the run's first model with the classes of the run, and a row's thresholds and temperatures.

    Thresholds of labels are those that all models of the row store; none if they differ.
    """
    thresholds, *others = {model.header.label_thresholds for model in opened}
    update = {
        "labels": run.data.class_names,
        "label_thresholds": () if others else thresholds,
        **scaling.on_top_of(stored_temperatures(opened)).fields,
    }
    return run.opened[0][0].header.model_copy(update=update)


def with_curves(
    row: Row,
    loaded: LoadedRow,
    answers: Mapping[str, Tensor],
    labels: Tensor,
    measurement: Measurement,
    first: Row | None,
) -> Row:
    """Return a row with its curves, its accuracy by class, and the heads and lineage of its models.

    Args:
        row: The row.
        loaded: Its models and predictions.
        answers: As `per_sample.answers` returns them.
        labels: Classes of the ID set, (N,).
        measurement: The numbers of the run.
        first: The first row, whose classes are shown; None if this is the first.
    """
    ood = {name: loaded.predictions[name] for name in measurement.ood}
    classes = None
    if not loaded.header.architecture.task.by_label:
        like = None if first is None else first.by_class
        classes = by_class(answers["predicted"], labels[labels >= 0], loaded.header.labels, like=like)
    return row.model_copy(
        update={
            "curves": curves_of(loaded.predictions[ID_NAME], answers, ood, measurement.scores[0]),
            "by_class": classes,
            "origins": tuple(
                Origin(name=model.as_input().name, masks=model.header.masks, made_by=model.header.made_by)
                for model in loaded.opened
            ),
        }
    )


def check_fitted_scores(
    scores: Sequence[str], opened: Sequence[Sequence[OpenModel]], classes: Classes | None = None
) -> None:
    """Refuse feature-based OOD scores that a model does not store for its classes.

    Args:
        scores: Feature-based scores that are not fitted in this run.
        opened: The models of each row.
        classes: Classes of zero-shot models; None if there are none, or they are not known yet.

    Raises:
        UsageError: If a model does not store one.
    """
    for model in chain.from_iterable(opened if scores else ()):
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
            hint="add `--fit DATA`, the labelled data that the model was trained on",
        )


def best_on_validation(
    measurement: Measurement, predictions: Mapping[str, StoredPredictions]
) -> tuple[dict[str, dict[str, Value]], str | None]:
    """Return every score's AUROC on each validation OOD set, and the score with the highest mean, the first of equal ones."""
    sets = measurement.ood_val
    if not sets:
        return {}, None
    numbers = measure(
        predictions[VAL],
        None,
        {name: predictions[name] for name in sets},
        metrics=(BY,),
        scores=measurement.scores,
        resampling=measurement.resampling,
    ).ood
    by_score = zip(measurement.scores, means(numbers, {VAL: sets})[VAL].values(), strict=True)
    return numbers, max(by_score, key=lambda pair: pair[1])[0]


DISAGREEMENT = "mi"
SIDE = 96
"""Of a thumbnail, at most; a smaller image keeps its size."""
QUALITY = 90


def examples_of(
    dataset: Dataset,
    predictions: StoredPredictions,
    answers: Mapping[str, Tensor],
    labels: Tensor,
    names: Sequence[str],
    *,
    most: int,
) -> Examples:
    """Return the inputs that show where a row fails.

    Args:
        dataset: The ID set.
        predictions: What the row says of it.
        answers: As `per_sample.answers`.
        labels: Shape (N,), int64, the models' classes.
        names: Of these.
        most: How many of each kind at most.
    """
    votes = torch.cat([part.log_probs.argmax(-1) for part in predictions.split(at_once(predictions))], 1)
    disagreement = scored(predictions, DISAGREEMENT) if len(votes) > 1 else None

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
        )

    return Examples(
        disagreements=()
        if disagreement is None
        else tuple(map(example, _highest(disagreement, disagreement > 0, most))),
        mistakes=tuple(map(example, _highest(answers["confidence"], ~answers["hits"].bool(), most))),
    )


def _highest(values: Tensor, among: Tensor, most: int) -> list[int]:
    """Return the places of the highest of some values (N,), of equal ones the first."""
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
