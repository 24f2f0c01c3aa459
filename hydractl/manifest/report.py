"""What `eval` measured, and every kind of JSON file by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
    with_plugin_fields,
)
from hydractl.manifest.guarantees import ByClass, Examples, OpenShare, SetNumbers, Threshold
from hydractl.manifest.head_mask import HeadMask, HeadScores, TowerKeep
from hydractl.manifest.header import Step, StoredTemperature
from hydractl.manifest.terms import ID_NAME, Temperature

USUAL = "msp"
"""OOD score of a report that does not name one."""


@with_plugin_fields
class Difference(StrictModel):
    """By how much the first row's numbers are more than another row's, on the ID set and on each OOD set.

    Both are measured on the same resamples, so that the intervals are those of paired differences. `means` are over OOD sets.
    """

    values: dict[str, Value]
    ood: dict[str, dict[str, Value]] = Field(default={})
    means: dict[str, dict[str, Value]] = Field(default={}, exclude_if=lambda value: not value)

    def under(self, scope: str) -> Mapping[str, Value]:
        """Return the differences in a scope of a plugin; plugins override this method."""
        del scope
        return {}


class StoredScores(StrictModel):
    """What the OOD scores of features were fitted on that a checkpoint holds. Earlier reports have `knn_k`, the neighbour that `knn` looked at."""

    data: Fingerprint
    knn_k: int | None = Field(default=None, exclude_if=lambda value: value is None)


Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
MOST_POINTS = 101
"""Text of one line."""


class Bins(StrictModel):
    """Samples by the confidence in the predicted class, as ECE has them: of each bin how many, and means (0 of none)."""

    count: tuple[Count, ...] = Field(min_length=1, max_length=MOST_POINTS)
    confidence: tuple[Share, ...]
    accuracy: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len({len(self.count), len(self.confidence), len(self.accuracy)}) > 1:
            raise ValueError("count, confidence, accuracy: must have one number per bin")
        return self


class Line(StrictModel):
    """Points of a curve from left to right, each one exact."""

    x: tuple[Share, ...] = Field(min_length=1, max_length=MOST_POINTS)
    y: tuple[Share, ...]

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if len(self.x) != len(self.y) or list(self.x) != sorted(self.x):
            raise ValueError("x, y: must have the same length, with x sorted")
        return self


class Curves(StrictModel):
    """The curves of one row.

    Attributes:
        reliability: On the ID set.
        confidence: For the ID set, `id`, and each OOD set how many samples have a confidence in each of some equal parts of
            [0, 1].
        risk: The share of wrong answers (y) among the most confident share of the ID samples (x).
        roc: For each OOD set the share of it that is flagged (y) where so much of ID is (x), by the first OOD score.
    """

    reliability: Bins
    confidence: dict[str, Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_POINTS)]]
    risk: Line
    roc: dict[str, Line] = Field(default={})

    def is_of(self, ood: Collection[str]) -> bool:
        """Return whether these are the curves of the ID set and of OOD sets of these names."""
        return self.confidence.keys() == {ID_NAME, *ood} and self.roc.keys() == {*ood}


@dataclass(frozen=True, slots=True)
class Column:
    """Declares a field of `Row` that is no metric as a column: terminal tables, pages and cards show it.

    Attributes:
        head: Heading of the column.
    """

    head: str


class Origin(StrictModel):
    """What one model of a row is: its name, the heads that each member keeps, and what made it."""

    name: str
    masks: tuple[dict[str, TowerKeep], ...] = Field(min_length=1)
    made_by: Step | None = None


def scaled_alike(*rows: Sequence[float]) -> bool:
    """Return whether all checkpoints of some rows store a temperature, or none does, given what each row's store."""
    return len({temperature != 1 for stored in rows for temperature in stored or (1.0,)}) < 2


@with_plugin_fields
class Row(StrictModel):
    """What was measured of one model or ensemble.

    What ranks samples is the report's first OOD score; by another one a metric is called `metric@score`.

    Attributes:
        name: Of the row.
        models: What it is of.
        stored_temperatures: The models' own, if any has one.
        stored_scores: What each model's OOD scores of features were fitted on, where they are those that it holds.
        threshold: Which inputs it answers, where that was asked for.
        label_temperatures: Of each of several labels in all, if they have temperatures of their own.
        entity_temperature: Of entities of words, in place of a stored one.
        label_thresholds: Of each of several labels, chosen on the ID set by `--label-thresholds`.
        sets: Size and coverage of its prediction sets, where it stores them or they were asked for.
        members: M of all models together.
        values: Metrics of the ID set, and costs.
        ood: Metrics of each OOD set.
        means: Of these over the sets `near`, `far`, `all`.
        mean_intervals: Their 95 % intervals.
        ood_val: Each score's AUROC on validation OOD data.
        best_score: The one whose mean there is highest.
        tuned_on_ood: Whether heads were chosen by how well OOD data are told.
        difference: What the first row has more than this one.
        curves: What figures show; `--no-curves` keeps none.
        by_class: Its answers class by class, on the same classes as the first row's; kept beside curves.
        origins: Where the models come from, one a model; likewise.
    """

    name: str
    models: tuple[Fingerprint, ...]
    stored_temperatures: tuple[StoredTemperature, ...] = Field(default=(), exclude_if=lambda value: not value)
    stored_scores: tuple[StoredScores, ...] = Field(default=(), exclude_if=lambda value: not value)
    threshold: Threshold | None = Field(default=None, exclude_if=lambda value: value is None)
    label_temperatures: Annotated[tuple[StoredTemperature, ...], Column("label temperatures")] = Field(
        default=(), exclude_if=lambda value: not value
    )
    entity_temperature: Annotated[StoredTemperature, Column("temperature of entities")] = Field(
        default=1.0, exclude_if=lambda value: value == 1
    )
    label_thresholds: Annotated[tuple[OpenShare, ...], Column("label thresholds")] = Field(
        default=(), exclude_if=lambda value: not value
    )
    sets: SetNumbers | None = Field(default=None, exclude_if=lambda value: value is None)
    members: int = Field(ge=1)
    values: dict[str, Value]
    ood: dict[str, dict[str, Value]] = Field(default={})
    means: dict[str, dict[str, float]] = Field(default={})
    mean_intervals: dict[str, dict[str, tuple[float, float]]] = Field(
        default={}, exclude_if=lambda value: not value
    )
    ood_val: dict[str, dict[str, Value]] = Field(default={}, exclude_if=lambda value: not value)
    best_score: str | None = Field(default=None, exclude_if=lambda value: value is None)
    tuned_on_ood: bool = Field(default=False, exclude_if=lambda value: not value)
    difference: Difference | None = Field(default=None, exclude_if=lambda value: value is None)
    curves: Curves | None = Field(default=None, exclude_if=lambda value: value is None)
    by_class: ByClass | None = Field(default=None, exclude_if=lambda value: value is None)
    origins: tuple[Origin, ...] = Field(default=(), exclude_if=lambda value: not value)

    @property
    def label_scopes(self) -> Sequence[str]:
        """Scopes of plugins that tables show, in which labelled data were measured. Plugins override this."""
        return ()

    def under(self, scope: str) -> Mapping[str, float]:
        """Return the numbers in a scope of a plugin; empty if nothing was measured there. Plugins override this."""
        del scope
        return {}

    @property
    def intervals_under(self) -> Mapping[str, Mapping[str, tuple[float, float]]]:
        """95 % intervals in each scope of a plugin. Plugins override this."""
        return {}

    @property
    def derivations(self) -> Sequence[object | None]:
        """Records of the plugin that derived other models from these; empty if these models answer. Plugins override this."""
        return ()

    @property
    def scale(self) -> Temperature:
        """What logits are divided by, if that is measured."""
        common = self.values["temperature"].value if "temperature" in self.values else 1.0
        return Temperature(common, self.label_temperatures, self.entity_temperature)

    @property
    def columns(self) -> dict[str, object]:
        """The fields declared as `Column`, by heading. Fields with their default value are left out."""
        return {
            column.head: getattr(self, name)
            for name, field in type(self).model_fields.items()
            for column in field.metadata
            if isinstance(column, Column) and getattr(self, name) != field.default
        }

    @model_validator(mode="after")
    def _drawn_whole(self) -> Self:
        if self.curves is not None and not self.curves.is_of(self.ood):
            raise ValueError(f"curves: must be for the ID set and {sorted(self.ood)}")
        if self.origins and len(self.origins) != len(self.models):
            raise ValueError("origins: must be empty or have one per model")
        return self


def column_heads(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the headings of the declared columns in which some row has a value."""
    return tuple(dict.fromkeys(head for row in rows for head in row.columns))


def _names(row: Row) -> Iterator[str]:
    """Yield the name of every number of a row, some of them again and again."""
    yield from chain(row.values, *row.ood.values(), *row.ood_val.values())
    if row.difference is not None:
        yield from chain(row.difference.values, *row.difference.ood.values())


class Check(StrictModel):
    """A `--fail-if` condition and what came of it."""

    condition: str
    failed: bool
    found: float


@with_plugin_fields
class Report(Document):
    """Every number that `eval` prints, `hydractl.report/1`.

    `warnings` say why some may be less than they seem;
    `config_digest` is as in a checkpoint's step. `examples` are inputs that the first row fails on, where `--keep-examples` kept them.
    """

    kind_of_file: ClassVar[str] = "report"

    schema_: Literal["hydractl.report/1"] = Field(default="hydractl.report/1", alias="schema")
    rows: tuple[Row, ...] = Field(min_length=1)
    data: dict[str, Fingerprint]
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    ood_val: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    ood_scores: tuple[Key, ...] = Field(
        default=(USUAL,), min_length=1, exclude_if=lambda value: value == (USUAL,)
    )
    definitions: dict[str, str]
    options: dict[Key, OptionValue]
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    examples: Examples | None = Field(default=None, exclude_if=lambda value: value is None)
    versions: dict[Key, Version]
    config_digest: ConfigDigest = None

    def without_examples(self) -> Self:
        """Return what may be shown to others: a report without the user's data."""
        return self.model_copy(update={"examples": None})

    def further_inputs(self) -> Sequence[Fingerprint]:
        """Return other files that `eval` read; plugins override this method."""
        return ()

    def row_of(self, *digests: str) -> Row | None:
        """Return the row of one unchanged model.

        Args:
            digests: Digests of the model's file and weights. The first digest with a row decides.
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


DOCUMENTS: dict[str, type[Document]] = {cls.kind_of_file: cls for cls in (HeadScores, HeadMask, Report)}
