"""The report of `eval`, and the table of all JSON documents by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import not_
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hydractl.manifest.document import (
    ConfigDigest,
    Document,
    Fingerprint,
    Key,
    OptionValue,
    StrictModel,
    Value,
    Version,
    is_none,
    with_plugin_fields,
)
from hydractl.manifest.guarantees import ByClass, Examples, KnownTest, OpenShare, SetNumbers, Threshold
from hydractl.manifest.head_mask import HeadImportance, HeadMask, TowerKeep
from hydractl.manifest.header import Step, StoredTemperature
from hydractl.manifest.terms import Temperature

DEFAULT_SCORE = "msp"
"""OOD score of a report without the field `ood_scores`."""


@with_plugin_fields
class Difference(StrictModel):
    """Numbers of the first row minus numbers of another row, on the ID set and on each OOD set.

    Both rows are measured on the same bootstrap resamples, so the intervals are intervals of paired
    differences.

    Attributes:
        values: Differences on the ID set.
        ood: Differences on each OOD set.
        means: Differences of the means over OOD sets.
    """

    values: dict[str, Value]
    ood: dict[str, dict[str, Value]] = Field(default={})
    means: dict[str, dict[str, Value]] = Field(default={}, exclude_if=not_)

    def under(self, scope: str) -> Mapping[str, Value]:
        """Return the differences on labelled data of a plugin, such as `fog:3`; empty without a plugin.

        Plugins override this method.
        """
        del scope
        return {}


class StoredScores(StrictModel):
    """Data set of the feature-based OOD scores that a checkpoint stores.

    Attributes:
        data: Data set that the scores were fitted on.
        knn_k: Neighbour of the score `knn` in reports of earlier versions.
    """

    data: Fingerprint
    knn_k: int | None = Field(default=None, exclude_if=is_none)


Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
MOST_POINTS = 101
"""Maximum number of points of a curve and of bins of a histogram. Chosen by hand: 100 steps suffice for a
figure of some hundred pixels. Doubling the limit doubles the size of curves in reports."""


class Bins(StrictModel):
    """Samples by confidence in the predicted class, in the bins of the ECE.

    Attributes:
        count: Number of samples in each bin.
        confidence: Mean confidence in each bin; 0 for empty bins.
        accuracy: Accuracy in each bin; 0 for empty bins.
    """

    count: tuple[Count, ...] = Field(min_length=1, max_length=MOST_POINTS)
    confidence: tuple[Share, ...]
    accuracy: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len({len(self.count), len(self.confidence), len(self.accuracy)}) > 1:
            raise ValueError("count, confidence, accuracy: must have one number per bin")
        return self


class Line(StrictModel):
    """Points of a curve in ascending order of x, without interpolation."""

    x: tuple[Share, ...] = Field(min_length=1, max_length=MOST_POINTS)
    y: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if len(self.x) != len(self.y) or list(self.x) != sorted(self.x):
            raise ValueError("x, y: must have the same length, with x sorted")
        return self


class Curves(StrictModel):
    """Curves of one row.

    Attributes:
        reliability: Reliability diagram of the ID set.
        confidence: Histograms of the confidence in reports of earlier versions; unused.
        risk: Risk-coverage curve of the ID set: error rate (y) among the most certain fraction of answers (x),
            by the first OOD score. Reports of earlier versions use the confidence.
        threshold: Risk-coverage curve of the calibration samples of the row's threshold, by its OOD score. `None`
            without a threshold, or if the curve equals `risk`.
        roc: ROC curve for each OOD set and the first OOD score: flagged fraction of the OOD set (y) against
            flagged fraction of the ID set (x).
    """

    reliability: Bins
    confidence: dict[str, Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_POINTS)]] = Field(
        default={}, exclude_if=not_
    )
    risk: Line
    threshold: Line | None = Field(default=None, exclude_if=is_none)
    roc: dict[str, Line] = Field(default={})

    def is_of(self, ood: Collection[str]) -> bool:
        """Return whether the curves belong to OOD sets with these names."""
        return self.roc.keys() == {*ood}


@dataclass(frozen=True, slots=True)
class Column:
    """Marker in the annotation of a `Row` field: tables, pages and cards show the field as a column.

    Attributes:
        head: Heading of the column.
    """

    head: str


class Origin(StrictModel):
    """One model of a row.

    Attributes:
        name: Name of the model.
        masks: Remaining heads of each member, by tower.
        made_by: Step that wrote the model. `None` if unknown.
    """

    name: str
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1)
    made_by: Step | None = None


def store_temperature_alike(*rows: Sequence[float]) -> bool:
    """Return whether all checkpoints store a temperature, or all store the default of 1.

    Args:
        rows: Stored temperatures of each row's models. An empty row counts as one temperature of 1.
    """
    return len({temperature != 1 for stored in rows for temperature in stored or (1.0,)}) < 2


@with_plugin_fields
class Row(StrictModel):
    """Results of one model or ensemble.

    Metrics of sample ranking use the report's first OOD score. Metrics by another score have the name
    `metric@score`.

    Attributes:
        name: Name of the row.
        models: Models of the row.
        stored_temperatures: Temperatures stored in the models; empty if all are 1.
        stored_scores: Data sets of the models' stored feature-based OOD scores; empty if the report used
            other scores.
        threshold: Threshold on the OOD score, if `eval` fitted one.
        known_test: Bound on the OOD score of known inputs, if `eval` fitted one.
        label_temperatures: Temperature of each label of a multi-label model; empty if unused.
        entity_temperature: Temperature of the entities of a token classifier. Replaces the stored
            temperature.
        label_thresholds: Probability threshold of each label, chosen on the ID set by `--label-thresholds`.
        sets: Size and coverage of the prediction sets, fitted by `eval` or stored in the model.
        members: Number of members of all models together.
        values: Metrics on the ID set, and costs.
        ood: Metrics on each OOD set.
        means: Means of `ood` over the sets `near`, `far`, `all`.
        mean_intervals: 95 % intervals of `means`.
        ood_val: AUROC of each score on each OOD validation set.
        best_score: Score with the highest mean of `ood_val`.
        tuned_on_ood: Whether heads of the models were selected by an objective on OOD data.
        difference: Numbers of the first row minus numbers of this row.
        curves: Data of the figures. `None` with `--no-curves`.
        by_class: Results by class, for the same classes as in the first row. `None` with `--no-curves`.
        origins: Origin of each model. Empty with `--no-curves`.
    """

    name: str
    models: tuple[Fingerprint, ...]
    stored_temperatures: tuple[StoredTemperature, ...] = Field(default=(), exclude_if=not_)
    stored_scores: tuple[StoredScores, ...] = Field(default=(), exclude_if=not_)
    threshold: Threshold | None = Field(default=None, exclude_if=is_none)
    known_test: KnownTest | None = Field(default=None, exclude_if=is_none)
    label_temperatures: Annotated[tuple[StoredTemperature, ...], Column("label temperatures")] = Field(
        default=(), exclude_if=not_
    )
    entity_temperature: Annotated[StoredTemperature, Column("temperature of entities")] = Field(
        default=1.0, exclude_if=lambda value: value == 1
    )
    label_thresholds: Annotated[tuple[OpenShare, ...], Column("label thresholds")] = Field(
        default=(), exclude_if=not_
    )
    sets: SetNumbers | None = Field(default=None, exclude_if=is_none)
    members: int = Field(ge=1)
    values: dict[str, Value]
    ood: dict[str, dict[str, Value]] = Field(default={})
    means: dict[str, dict[str, float]] = Field(default={})
    mean_intervals: dict[str, dict[str, tuple[float, float]]] = Field(default={}, exclude_if=not_)
    ood_val: dict[str, dict[str, Value]] = Field(default={}, exclude_if=not_)
    best_score: str | None = Field(default=None, exclude_if=is_none)
    tuned_on_ood: bool = Field(default=False, exclude_if=not_)
    difference: Difference | None = Field(default=None, exclude_if=is_none)
    curves: Curves | None = Field(default=None, exclude_if=is_none)
    by_class: ByClass | None = Field(default=None, exclude_if=is_none)
    origins: tuple[Origin, ...] = Field(default=(), exclude_if=not_)

    @property
    def label_scopes(self) -> Sequence[str]:
        """Names of the plugins' labelled data, such as `fog:3`, for tables. Plugins override this property."""
        return ()

    def under(self, scope: str) -> Mapping[str, float]:
        """Return the numbers on labelled data of a plugin, such as `fog:3`; empty without numbers.

        Plugins override this method.
        """
        del scope
        return {}

    @property
    def intervals_under(self) -> Mapping[str, Mapping[str, tuple[float, float]]]:
        """95 % intervals on labelled data of plugins, by name of the data. Plugins override this property."""
        return {}

    @property
    def derivations(self) -> Sequence[object | None]:
        """Records of the plugin that derived the evaluated models from `models`.

        Empty if `models` themselves were evaluated. Plugins override this property.
        """
        return ()

    @property
    def scale(self) -> Temperature:
        """Temperature of the row; 1 if the report does not have the metric `temperature`."""
        common = self.values["temperature"].value if "temperature" in self.values else 1.0
        return Temperature(common, self.label_temperatures, self.entity_temperature)

    @property
    def columns(self) -> dict[str, object]:
        """Values of the fields marked with `Column`, by heading, without fields that have the default value."""
        return {
            column.head: getattr(self, name)
            for name, field in type(self).model_fields.items()
            for column in field.metadata
            if isinstance(column, Column) and getattr(self, name) != field.default
        }

    @model_validator(mode="after")
    def _drawn_whole(self) -> Self:
        if self.curves is not None and not self.curves.is_of(self.ood):
            raise ValueError(f"curves: must be for the sets {sorted(self.ood)}")
        if self.origins and len(self.origins) != len(self.models):
            raise ValueError("origins: must be empty or have one per model")
        return self


def column_heads(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the headings of all `Column` fields with a value other than the default in at least one row."""
    return tuple(dict.fromkeys(head for row in rows for head in row.columns))


def _names(row: Row) -> Iterator[str]:
    """Yield the name of every number of a row, with repetitions."""
    yield from chain(row.values, *row.ood.values(), *row.ood_val.values())
    if row.difference is not None:
        yield from chain(row.difference.values, *row.difference.ood.values())


class Check(StrictModel):
    """Result of a `--fail-if` condition.

    Attributes:
        condition: The condition.
        failed: Whether the condition holds, so that the command fails.
        found: Measured value.
    """

    condition: str
    failed: bool
    found: float


@with_plugin_fields
class Report(Document):
    """Results of `eval`, `hydractl.report/1`.

    Attributes:
        rows: Results of each model or ensemble.
        data: Data sets by name. The ID set has the name `id`.
        near: Names of the near OOD sets.
        far: Names of the far OOD sets.
        ood_val: Names of the OOD validation sets.
        ood_scores: Names of the OOD scores. Metrics without the suffix `@score` use the first score.
        definitions: Definition of each metric.
        options: Options of `eval`.
        checks: Results of the `--fail-if` conditions.
        warnings: Reasons why numbers may be misleading.
        examples: Inputs that show errors of the first row, with `--keep-examples`.
        versions: As in the step of a checkpoint.
        config_digest: As in the step of a checkpoint.
    """

    kind_of_file: ClassVar[str] = "report"

    schema_: Literal["hydractl.report/1"] = Field(default="hydractl.report/1", alias="schema")
    rows: tuple[Row, ...] = Field(min_length=1)
    data: dict[str, Fingerprint]
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    ood_val: tuple[str, ...] = Field(default=(), exclude_if=not_)
    ood_scores: tuple[Key, ...] = Field(
        default=(DEFAULT_SCORE,), min_length=1, exclude_if=lambda value: value == (DEFAULT_SCORE,)
    )
    definitions: dict[str, str]
    options: dict[Key, OptionValue]
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = Field(default=(), exclude_if=not_)
    examples: Examples | None = Field(default=None, exclude_if=is_none)
    versions: dict[Key, Version]
    config_digest: ConfigDigest = None

    def without_examples(self) -> Self:
        """Return a copy without `examples`, which contain the user's data, for publication."""
        return self.model_copy(update={"examples": None})

    def further_inputs(self) -> Sequence[Fingerprint]:
        """Return the other files that `eval` read. Plugins override this method."""
        return ()

    def row_of(self, *digests: str) -> Row | None:
        """Return the row of a single model that is in the report unchanged.

        Args:
            digests: Digests of the model's file and weights, in order of priority.

        Returns:
            The first row for the first digest with a row, or `None`.
        """
        return next(
            (
                row
                for digest in digests
                for row in self.rows
                if not row.derivations
                and len(row.models) == 1
                and digest in {row.models[0].sha256, row.models[0].weights}
            ),
            None,
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sets = (*self.near, *self.far)
        every = (*sets, *self.ood_val)
        if len(set(every)) != len(every) or not {*every} <= self.data.keys():
            raise ValueError("near, far, ood_val: must be names in `data`, each once")
        if len({row.name for row in self.rows}) != len(self.rows):
            raise ValueError("rows: two rows have the same name")
        for i, row in enumerate(self.rows):
            if row.ood.keys() != {*sets}:
                raise ValueError(
                    f"rows[{i}].ood: has {sorted(row.ood)}, but near and far have {sorted(sets)}"
                )
            if not row.means.keys() <= {"near", "far", "all"}:
                raise ValueError(f"rows[{i}].means: has {sorted(row.means)}; expected near, far or all")
            if row.difference is not None and row.difference.ood.keys() != {*sets}:
                raise ValueError(f"rows[{i}].difference.ood: must have the data sets of near and far")
        return self

    @model_validator(mode="after")
    def _defined(self) -> Self:
        for i, row in enumerate(self.rows):
            for name in _names(row):
                metric, _, score = name.partition("@")
                if metric not in self.definitions:
                    raise ValueError(f"rows[{i}]: `{metric}` has no definition")
                if score and score not in self.ood_scores[1:]:
                    raise ValueError(
                        f"rows[{i}]: `{name}`, but the other OOD scores are {list(self.ood_scores[1:])}"
                    )
        return self

    @model_validator(mode="after")
    def _validated(self) -> Self:
        for i, row in enumerate(self.rows):
            if row.ood_val.keys() != {*self.ood_val}:
                raise ValueError(f"rows[{i}].ood_val: has {sorted(row.ood_val)}, not {sorted(self.ood_val)}")
            scores = self.ood_scores if self.ood_val else (None,)
            if row.best_score not in scores:
                raise ValueError(
                    f"rows[{i}].best_score: is {row.best_score}, must be one of {', '.join(map(str, scores))}"
                )
        return self


DOCUMENTS: dict[str, type[Document]] = {cls.kind_of_file: cls for cls in (HeadImportance, HeadMask, Report)}
