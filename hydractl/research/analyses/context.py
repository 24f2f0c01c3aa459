"""Inputs of analyses: a row with its loaded models, its data and its predictions; and the run over all analyses.

Axes: N samples, B batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hydractl import progress
from hydractl.data.batches import Batch
from hydractl.errors import InputError
from hydractl.evaluation.rows import Evaluation, LoadedRow
from hydractl.families.open_model import OpenModel, load_model
from hydractl.families.tower import Contrast, Model, Towers
from hydractl.fusion.build import members_from_state
from hydractl.manifest.head_mask import HeadScores
from hydractl.manifest.header import Fate, Kind, steps_to
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.compute import means, measure
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import needing
from hydractl.metrics.resampling import Resampling
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.plugins import load
from hydractl.prediction.answers import Scaling
from hydractl.prediction.class_names import prompts_of
from hydractl.prediction.inference import collected, responses
from hydractl.research.analyses.options import ANALYSES, Analysing, AnalysisNeeds
from hydractl.research.corruptions.measure import with_corruption
from hydractl.research.corruptions.names import Corruption
from hydractl.research.schema import Analyses
from hydractl.runtime import on_device
from hydractl.scoring.job import Samples

HINTS = {
    AnalysisNeeds.BASE: "add the base of the pruned models: `--compare base=BASE`",
    AnalysisNeeds.MEMBERS: "measure a hydra, or several models as a row: `--compare 'NAME=a.st,b.st'`",
    AnalysisNeeds.WHOLE: "add it: `--compare base=BASE`",
    AnalysisNeeds.MERGED: "add them: `--compare 'apart=m0.st,m1.st,m2.st'`",
}


class ModelOfRow(NamedTuple):
    """One model of a row, opened and loaded. `first` is the number of its first member in the row."""

    opened: OpenModel
    model: Towers
    first: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisContext:
    """A row and the run that measures it.

    Attributes:
        run: The run.
        parts: Models of the row; empty for baselines, which derive one model from several.
        base: The base that a member was pruned from, if it is also a row.
        separate_members: The members of a hydra with merged weights, if they are also a row.
        scores: Scores of the base's heads, by their names.
        corruptions: Corruptions of the ID set.
        predictions: Predictions on each data set; empty in processes that do not lead.
        scaled: Divides logits by the temperature of the row.
    """

    run: Evaluation
    parts: Sequence[ModelOfRow]
    base: OpenModel | None
    separate_members: Sequence[OpenModel]
    scores: Mapping[str, HeadScores]
    corruptions: Sequence[Corruption]
    predictions: Mapping[str, StoredPredictions]
    scaled: Scaling

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the OOD sets."""
        return self.run.measurement.ood

    @property
    def labels(self) -> Tensor:
        """Labels of the ID set, (N,)."""
        return self.run.data.labels

    def count(self, name: str) -> int:
        """Return the number of samples of a data set."""
        return len(self.run.data.inputs[name])

    def batches(self, part: ModelOfRow, of: str | Corruption) -> Iterable[Batch[Inputs]]:
        """Return this process's batches of a data set, or of the ID set under a corruption, as a model reads them."""
        inputs = self.run.data.inputs[ID_NAME if isinstance(of, Corruption) else of]
        if isinstance(of, Corruption):
            inputs = inputs.of(with_corruption(inputs.dataset, of), name=f"{of.name} {of.severity}")
        return inputs.tracked(part.opened.header.preprocess, part.opened.reference)

    def inputs(self, part: ModelOfRow, of: str | Corruption) -> Iterator[tuple[Tensor, Inputs]]:
        """Yield the numbers of the samples of each batch, (B,), and the batch on the model's device."""
        like = torch.empty(0, device=part.model.device, dtype=part.model.dtype)
        for batch in self.batches(part, of):
            yield batch.indices, inputs_like(batch.inputs, like)


class Numbers(NamedTuple):
    """On the ID set, and means over groups of OOD sets."""

    values: dict[str, float]
    means: dict[str, dict[str, float]]


def ask(context: AnalysisContext, part: ModelOfRow, model: Towers) -> dict[str, StoredPredictions]:
    """Return what a model says of the ID set and of each OOD set, in every process, with the temperatures of a model of the row.

    Args:
        context: The row.
        part: The model of the row that it reads as.
        model: On the row's device.
    """
    model.temperature = part.model.temperature
    predictions: dict[str, StoredPredictions] = {}
    for name in (ID_NAME, *context.sets):
        batches = responses(model, context.batches(part, name), name=part.opened.reference, data=name)
        predictions[name] = context.scaled(
            collected(
                context.run.team.iterate(batches),
                count=context.count(name),
                folder=Path(tempfile.gettempdir()),
            )
        )
    return predictions


def measured(context: AnalysisContext, predictions: Mapping[str, StoredPredictions]) -> Numbers:
    """Return the row's metrics of an ensemble that says this of the ID set and of each OOD set."""
    scores = context.run.measurement.scores
    # metrics of the first score have no suffix, so the others are measured only if it follows from predictions
    ranks = [score for score in scores if score in SCORES] if scores[0] in SCORES else []
    numbers = measure(
        predictions[ID_NAME],
        context.labels,
        {name: predictions[name] for name in context.sets},
        metrics=needing(
            context.run.measurement.metrics, MetricNeeds.LABELS, MetricNeeds.OOD, MetricNeeds.MEMBERS
        ),
        scores=ranks,
        resampling=Resampling(resamples=0),
    )
    values = {name: value.value for name, value in numbers.values.items()}
    return Numbers(values, means(numbers.ood, context.run.measurement.groups))


def with_classes(model: Model, opened: OpenModel, context: AnalysisContext) -> Model:
    """Return a model on the row's device, without gradients of weights, with its classes as prompts if it is zero-shot."""
    if isinstance(model.answer, Contrast) and context.run.data.classes is not None:
        model.answer.ask(
            prompts_of(opened, context.run.data.classes), templates=len(context.run.data.classes.templates)
        )
    return model.requires_grad_(requires_grad=False).to(context.parts[0].model.device)


def single(opened: OpenModel, context: AnalysisContext) -> Model:
    """Return a base or a member."""
    return with_classes(load_model(opened, dtype=torch.float32), opened, context)


def members_of(part: ModelOfRow, context: AnalysisContext) -> Iterator[Model]:
    """Yield each member of a model of the row."""
    opened = part.opened
    if opened.header.kind != Kind.HYDRA:
        yield single(opened, context)
        return
    state = opened.checkpoint.tensors()
    for model in members_from_state(opened.header, state, where=opened.reference, dtype=torch.float32):
        yield with_classes(model, opened, context)


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """This process's batches of the ID set with their labels, on a model's device, again and again."""

    context: AnalysisContext
    part: ModelOfRow
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.context.batches(self.part, ID_NAME):
            labels = on_device(self.context.labels[batch.indices], self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)


def analyse(
    names: Sequence[str],
    scores: Mapping[str, HeadScores],
    corruptions: Sequence[Corruption],
    run: Evaluation,
    row: LoadedRow,
) -> Analyses | None:
    """Return the named analyses of a row; None if no analysis applies.

    Raises:
        InputError: If models do not belong together.
        DataError: If numbers are not finite.
    """
    if not names:
        return None
    parts: list[ModelOfRow] = []
    is_derived = row.named.is_derived  # of several models, so that models and files are no pairs
    for opened, predictor in () if is_derived else zip(row.opened, row.predictors, strict=True):
        parts.append(
            ModelOfRow(opened, predictor.model, sum(len(part.opened.header.masks) for part in parts))
        )
    context = AnalysisContext(
        run=run,
        parts=parts,
        base=next((base for model in row.opened if (base := base_of(model, run.opened))), None),
        separate_members=() if is_derived else apart_of(row.opened, run.opened),
        scores=scores,
        corruptions=corruptions,
        predictions=row.predictions,
        scaled=row.scaling,
    )
    answers: dict[str, object] = {}
    for name in names:
        progress.step(f"Analysing {row.named.name}: {name}")
        if answer := load(ANALYSES[name].path)(context):
            answers[name] = answer
    return Analyses.model_validate(answers) if answers else None


def read_scores(analysing: Analysing, opened: Sequence[Sequence[OpenModel]]) -> dict[str, HeadScores]:
    """Return the scores of each file of `--scores` by its name.

    Raises:
        ManifestError: If a file holds no scores.
        InputError: If the scores are of another architecture's heads.
    """
    scores = {file.name: HeadScores.read(file.ref) for file in analysing.scores}
    for file in analysing.scores:
        for model in (m for row in opened for m in row):
            architecture = model.header.architecture
            for name, table in scores[file.name].towers.items():
                tower = architecture.towers.get(name)
                shape = len(table.scores), len(table.scores[0])
                if tower is None or shape != (tower.layers, tower.num_heads):
                    raise InputError(
                        f"{file.ref}: its scores are for a tower `{name}` with {shape[0]} "
                        f"layers of {shape[1]} heads, which {model.reference} does not have",
                        hint="score the base of the pruned models",
                    )
    return scores


def check_rows(analysing: Analysing, opened: Sequence[Sequence[OpenModel]]) -> None:
    """Refuse an analysis that is named and that no row is fit for, before data are read.

    Raises:
        InputError: Naming the analysis.
    """
    fits = {
        AnalysisNeeds.BASE: any(base_of(model, opened) for row in opened for model in row),
        AnalysisNeeds.MEMBERS: any(sum(len(m.header.masks) for m in row) > 1 for row in opened),
        AnalysisNeeds.WHOLE: any(len(row) == 1 and row[0].header.kind == Kind.BASE for row in opened),
        AnalysisNeeds.MERGED: any(apart_of(row, opened) for row in opened),
    }
    for name in analysing.named:
        for need in ANALYSES[name].needs:
            if not fits.get(need, True):
                raise InputError(f"`--analyse {name}` needs {need.value}", hint=HINTS[need])


def base_of(model: OpenModel, opened: Sequence[Sequence[OpenModel]]) -> OpenModel | None:
    """Return the base that a model was pruned from, if it is a row: of several in its lineage the nearest."""
    bases = {row[0].checkpoint.digest: row[0] for row in opened if len(row) == 1}
    bases = {digest: base for digest, base in bases.items() if base.header.kind == Kind.BASE}
    return (
        None
        if model.header.kind == Kind.BASE
        else next((bases[digest] for digest in _ancestors(model) if digest in bases), None)
    )


def apart_of(row: Sequence[OpenModel], opened: Sequence[Sequence[OpenModel]]) -> Sequence[OpenModel]:
    """Return the members that a row's hydra was fused from, if they are a row and weights were merged."""
    hydra, plan = row[0], row[0].header.plan
    if len(row) > 1 or plan is None or Fate.MERGED not in plan.fates.values() or hydra.header.made_by is None:
        return ()
    member_digests = [
        file.sha256 for file in hydra.header.made_by.inputs[: len(hydra.header.masks)]
    ]  # then come data
    return next(
        (other_row for other_row in opened if [m.checkpoint.digest for m in other_row] == member_digests), ()
    )


def _ancestors(model: OpenModel) -> Iterator[str]:
    """Yield the digests of what a model was made of, the nearest first, and its base's at last."""
    for step in reversed(steps_to(model.header.made_by)):
        yield from (file.sha256 for file in step.inputs)
    if model.header.base is not None:
        yield model.header.base
