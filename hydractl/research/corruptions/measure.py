"""Corrupted data sets, and metrics of a row on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image
from torch import Tensor
from typing_extensions import override

from hydractl.data.datasets import Dataset, ImageSet, ItemPreprocess, Text, TextSet, change_text, of_kind
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
    """Thread-safe preprocessing of corrupted images: resize and crop, corrupt, normalize.

    Attributes:
        clean: Preprocessing without corruption.
        least: As in `EvalTransform`.
        corruption: The corruption.
    """

    clean: EvalTransform
    least: int
    corruption: Corruption

    @classmethod
    def of(cls, corruption: Corruption, clean: EvalTransform) -> CorruptTransform:
        """Add a corruption to a preprocessing."""
        return cls(clean=clean, least=clean.least, corruption=corruption)

    @override
    def __call__(self, image: Image.Image, index: int) -> Tensor:
        from hydractl.research.corruptions.images import corrupted  # noqa: PLC0415 - loads scipy

        prepared = run_steps(self.clean.steps, self.clean.convert(image))
        random = np.random.default_rng(sample_seed(*self.corruption.seeded(index)))
        return self.clean.finish(corrupted(prepared, self.corruption, random))


def with_corruption(dataset: Dataset, corruption: Corruption) -> Dataset:
    """Return a data set with corrupted items.

    Texts (both of a pair) are corrupted at once, images during preprocessing. Draws depend on the seed and an
    item's index in the data set, and not on batches or threads.

    Raises:
        UsageError: If the data set has labelled words.
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


def check_photographs(corruptions: Iterable[Corruption], preprocess: ItemPreprocess) -> None:
    """Check that frost photographs are large enough for crops of the model's input size.

    Raises:
        DataError: If a photograph is too small or cannot be read.
    """
    photographs = next((c.photographs for c in corruptions if c.photographs), None)
    if photographs is None or isinstance(preprocess, Tokenization):
        return
    from hydractl.research.corruptions.images import frost_scale, photograph  # noqa: PLC0415 - loads scipy

    _, height, width = preprocess.input_size
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
    """Metrics of a row on the corrupted ID set, on the same resamples of samples for all corruptions.

    Attributes:
        cells: Metrics by (corruption, severity).
    """

    cells: Mapping[tuple[str, str], Estimates]

    def to_shift(self) -> Shift:
        """Return the metrics in the form of a report."""
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
        """Means over corruptions and severities, by scope."""
        return group_means(self.cells, scopes(self.cells))

    def differences(self, other_row: ShiftNumbers) -> dict[str, dict[str, Value]]:
        """Return the means minus another row's means, by scope and metric; empty scopes are omitted."""
        return {name: gap for name, gap in differences(self.means, other_row.means).items() if gap}


def measure_corrupted(
    run: Evaluation, row: LoadedRow, corruptions: Iterable[Corruption]
) -> ShiftNumbers | None:
    """Measure a row on the ID set under each corruption.

    Memory holds the predictions under a single corruption, and a number per metric and resample.

    Returns:
        None without corruptions, and on all ranks except the leading rank.
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
