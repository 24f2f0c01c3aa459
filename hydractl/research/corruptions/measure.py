"""Corrupted data sets, and the numbers of a row on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image
from torch import Tensor
from typing_extensions import override

from hydractl.data.datasets import Dataset, ImageSet, Reading, Text, TextSet, change_text, of_kind
from hydractl.data.preprocess import EvalTransform, PerItem, run_steps, sample_seed
from hydractl.data.words import WordSet
from hydractl.errors import DataError, UsageError
from hydractl.evaluation.rows import Evaluation, LoadedRow
from hydractl.manifest.document import Value
from hydractl.manifest.header import Tokenization
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.compute import (
    Estimates,
    Measurement,
    differences,
    group_means,
    interval_ends,
    measure_all,
)
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import needing
from hydractl.metrics.resampling import MetricEstimate
from hydractl.research.corruptions.names import SHIFT, Corruption, scopes
from hydractl.research.corruptions.schema import ALL_SEVERITIES, Shift
from hydractl.research.corruptions.texts import corrupted_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptTransform(PerItem):
    """What images go through that are corrupted: resized and cropped, corrupted, normalised. Safe to call from several threads.

    Attributes:
        clean: What they else go through.
        least: As in `EvalTransform`.
        corruption: What befalls them.
    """

    clean: EvalTransform
    least: int
    corruption: Corruption

    @classmethod
    def of(cls, corruption: Corruption, clean: EvalTransform) -> CorruptTransform:
        """Return the transform of a corruption and of clean images."""
        return cls(clean=clean, least=clean.least, corruption=corruption)

    @override
    def __call__(self, image: Image.Image, index: int) -> Tensor:
        from hydractl.research.corruptions.images import corrupted  # noqa: PLC0415 - loads scipy

        prepared = run_steps(self.clean.steps, self.clean.convert(image))
        random = np.random.default_rng(sample_seed(*self.corruption.seeded(index)))
        return self.clean.finish(corrupted(prepared, self.corruption, random))


def with_corruption(dataset: Dataset, corruption: Corruption) -> Dataset:
    """Return the items as a corruption leaves them: texts now, both of a pair; images on their way to a model.

    Draws hang on the seed and on an item's place in the set: not on batches, their order, or who decodes them.
    """
    if isinstance(dataset, ImageSet):
        return replace(dataset, changed=partial(CorruptTransform.of, corruption))
    texts = of_kind(dataset, TextSet)
    if isinstance(texts, WordSet):
        raise UsageError(
            "`--corrupt`: a corrupted text no longer has the words that are answered", hint="leave it out"
        )
    return replace(texts, texts=tuple(_corrupted(text, corruption, i) for i, text in enumerate(texts.texts)))


def _corrupted(text: Text, corruption: Corruption, place: int) -> Text:
    random = np.random.default_rng(sample_seed(*corruption.seeded(place)))
    return change_text(text, lambda part: corrupted_text(part, corruption, random))


def check_photographs(corruptions: Iterable[Corruption], how: Reading) -> None:
    """Refuse photographs that are too small for crops of what the model reads.

    Raises:
        DataError: If one is, or cannot be read.
    """
    photographs = next((c.photographs for c in corruptions if c.photographs), None)
    if photographs is None or isinstance(how, Tokenization):
        return
    from hydractl.research.corruptions.images import frost_scale, photograph  # noqa: PLC0415 - loads scipy

    _, height, width = how.input_size
    scale = frost_scale(min(height, width))
    for i, file in enumerate(photographs.files):
        rows, columns, *_ = photograph(photographs, i, scale).shape
        if rows <= height or columns <= width:
            raise DataError(
                f"{file}: {columns} x {rows} pixels, scaled by {scale:g}, is too small for crops of {width} x {height}",
                hint="give larger photographs, or omit `=DIR` to use drawn ice",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShiftNumbers:
    """Values of a row on the corrupted ID set, all on the same resamples of the clean samples.

    Attributes:
        cells: Values by corruption and severity.
    """

    cells: Mapping[tuple[str, str], Estimates]

    def to_shift(self) -> Shift:
        """Return the values as stored in a report."""
        means = self.means
        values: dict[str, dict[str, dict[str, float]]] = {}
        for (name, severity), estimates in self.cells.items():
            values.setdefault(name, {})[severity] = {
                metric: estimate.value for metric, estimate in estimates.items()
            }
        severities = {scope: scope.removeprefix(f"{SHIFT}:") for scope in means if f"{SHIFT}:" in scope}
        return Shift(
            values=values,
            means={
                severity: {metric: estimate.value for metric, estimate in means[scope].items()}
                for scope, severity in (severities | {SHIFT: ALL_SEVERITIES}).items()
            },
            intervals=interval_ends(means),
        )

    @property
    def means(self) -> dict[str, dict[str, MetricEstimate]]:
        """Means over corruptions and severities, by the names that conditions use."""
        return group_means(self.cells, scopes(self.cells))

    def differences(self, other_row: ShiftNumbers) -> dict[str, dict[str, Value]]:
        """Return the differences of means to another row, as in `manifest.Difference`."""
        return {name: gap for name, gap in differences(self.means, other_row.means).items() if gap}


def measure_corrupted(
    run: Evaluation, row: LoadedRow, corruptions: Iterable[Corruption]
) -> ShiftNumbers | None:
    """Return a row's numbers on labelled data under each corruption; None without one, or in processes that do not lead.

    Memory holds the predictions under one corruption, and for each metric one number per resample.
    """
    cells: dict[tuple[str, str], Estimates] = {}
    metrics = needing(run.measurement.metrics, MetricNeeds.LABELS, MetricNeeds.TASK)
    for corruption in corruptions:
        clean = run.data.inputs[ID_NAME]
        changed = with_corruption(clean.dataset, corruption)
        inputs = clean.of(changed, name=f"{corruption.name} {corruption.severity}")
        predictions = run.predict(row.predictors, inputs)
        if predictions is not None:
            cells[corruption.name, str(corruption.severity)] = measure_all(
                row.scaling(predictions),
                run.data.labels,
                {},
                row.header,
                Measurement(metrics, (), run.measurement.resampling),
            ).id_set
    return ShiftNumbers(cells=cells) if cells else None
