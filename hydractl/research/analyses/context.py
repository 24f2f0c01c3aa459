"""Run the analyses of a row on the loaded models, data and predictions.

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
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.header import Fate, Kind, lineage_to
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.compute import means, measure
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.metrics.registry import needing
from hydractl.metrics.resampling import Resampling
from hydractl.model_inputs import Inputs, inputs_like
from hydractl.plugins import load
from hydractl.prediction.class_names import prompts_of
from hydractl.prediction.inference import collected, responses
from hydractl.prediction.run_models import Scaling
from hydractl.research.analyses.options import ANALYSES, AnalysisNeeds, AnalysisOptions
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
"""How the user provides each missing row, for error messages."""


class ModelOfRow(NamedTuple):
    """A model of a row: checkpoint and loaded model.

    Attributes:
        model_file: Header and files of the checkpoint.
        model: The model on the row's device.
        first: Number of the model's first member within the row.
    """

    model_file: OpenModel
    model: Towers
    first: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnalysisContext:
    """Models, data and predictions of the row that is analysed.

    Attributes:
        run: The run of `eval`.
        parts: Models of the row. Empty for rows with baselines, because a baseline may combine several files
            into one model.
        base: The base of a model of the row; None if the base is not a row.
        separate_members: The members of a hydra with merged weights; empty if no row has these members.
        scores: Head importance files of `--scores`, by name.
        corruptions: Corruptions of the ID set.
        predictions: Predictions on each data set, by name; empty on all ranks except the leading rank.
        scaled: Divides logits by the row's temperature.
    """

    run: Evaluation
    parts: Sequence[ModelOfRow]
    base: OpenModel | None
    separate_members: Sequence[OpenModel]
    scores: Mapping[str, HeadImportance]
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
        """Return this rank's batches of a data set, or of the corrupted ID set, in the model's preprocessing."""
        inputs = self.run.data.inputs[ID_NAME if isinstance(of, Corruption) else of]
        if isinstance(of, Corruption):
            inputs = inputs.of(with_corruption(inputs.dataset, of), name=f"{of.name} {of.severity}")
        return inputs.tracked(part.model_file.header.preprocess, part.model_file.reference)

    def inputs(self, part: ModelOfRow, of: str | Corruption) -> Iterator[tuple[Tensor, Inputs]]:
        """Yield, for each batch, the sample indices (B,) and the inputs on the model's device."""
        like = torch.empty(0, device=part.model.device, dtype=part.model.dtype)
        for batch in self.batches(part, of):
            yield batch.indices, inputs_like(batch.inputs, like)


class Numbers(NamedTuple):
    """Metrics of an ensemble.

    Attributes:
        values: Metric values on the ID set.
        means: For each group of OOD sets, the means over its sets.
    """

    values: dict[str, float]
    means: dict[str, dict[str, float]]


def predict_sets(context: AnalysisContext, part: ModelOfRow, model: Towers) -> dict[str, StoredPredictions]:
    """Return a model's predictions on the ID set and each OOD set, on every rank.

    Args:
        context: The row.
        part: Model of the row whose preprocessing and temperature are used.
        model: Model to run, on the row's device. The call overwrites the model's temperature.

    Returns:
        Predictions by data set, with logits divided by the row's temperature too.
    """
    model.temperature = part.model.temperature
    predictions: dict[str, StoredPredictions] = {}
    for name in (ID_NAME, *context.sets):
        batches = responses(model, context.batches(part, name), name=part.model_file.reference, data=name)
        predictions[name] = context.scaled(
            collected(
                context.run.team.iterate(batches),
                count=context.count(name),
                folder=Path(tempfile.gettempdir()),
            )
        )
    return predictions


def measure_ensemble(context: AnalysisContext, predictions: Mapping[str, StoredPredictions]) -> Numbers:
    """Return the row's metrics for an ensemble.

    Args:
        context: The row, with the selected metrics and OOD scores.
        predictions: Predictions of the ensemble on the ID set and on each OOD set, by name.
    """
    scores = context.run.measurement.scores
    # Metrics of the first OOD score have names without a suffix. If the first score needs features, no score
    # is measured, because the next score's metrics would get these names.
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


def prepare_model(model: Model, model_file: OpenModel, context: AnalysisContext) -> Model:
    """Prepare a model for analysis: move weights to the row's device and freeze them.

    A zero-shot model also embeds the prompts of the classes of the data.
    """
    if isinstance(model.answer, Contrast) and context.run.data.classes is not None:
        model.answer.ask(
            prompts_of(model_file, context.run.data.classes),
            templates=len(context.run.data.classes.templates),
        )
    return model.requires_grad_(requires_grad=False).to(context.parts[0].model.device)


def load_single(model_file: OpenModel, context: AnalysisContext) -> Model:
    """Load a base or a member in float32; see `prepare_model`."""
    return prepare_model(load_model(model_file, dtype=torch.float32), model_file, context)


def members_of(part: ModelOfRow, context: AnalysisContext) -> Iterator[Model]:
    """Yield each member of a model of the row, in float32; see `prepare_model`."""
    model_file = part.model_file
    if model_file.header.kind != Kind.HYDRA:
        yield load_single(model_file, context)
        return
    state = model_file.checkpoint.tensors()
    for model in members_from_state(
        model_file.header, state, place=model_file.reference, dtype=torch.float32
    ):
        yield prepare_model(model, model_file, context)


@dataclass(frozen=True, slots=True)
class LabelledBatches:
    """Reusable iterable over this rank's labelled ID batches, on the device and in the dtype of `like`."""

    context: AnalysisContext
    part: ModelOfRow
    like: torch.Tensor

    def __iter__(self) -> Iterator[Samples]:
        for batch in self.context.batches(self.part, ID_NAME):
            labels = on_device(self.context.labels[batch.indices], self.like.device)
            yield Samples(inputs_like(batch.inputs, self.like), labels)


def analyse(
    names: Sequence[str],
    scores: Mapping[str, HeadImportance],
    corruptions: Sequence[Corruption],
    run: Evaluation,
    row: LoadedRow,
) -> Analyses | None:
    """Run the named analyses of a row.

    Returns:
        Results of the applicable analyses; None if no analysis applies.

    Raises:
        InputError: If the tensors of a member and of its base do not fit together.
        DataError: If losses or gradients are not finite.
    """
    if not names:
        return None
    parts: list[ModelOfRow] = []
    is_derived = row.named.is_derived  # a baseline may combine several files into one model
    for model_file, predictor in () if is_derived else zip(row.model_files, row.predictors, strict=True):
        parts.append(
            ModelOfRow(model_file, predictor.model, sum(len(part.model_file.header.masks) for part in parts))
        )
    context = AnalysisContext(
        run=run,
        parts=parts,
        base=next((base for model in row.model_files if (base := base_of(model, run.model_files))), None),
        separate_members=() if is_derived else separate_members_of(row.model_files, run.model_files),
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


def read_importances(
    analysing: AnalysisOptions, model_files: Sequence[Sequence[OpenModel]]
) -> dict[str, HeadImportance]:
    """Read the head importance files of `--scores`, by name.

    Raises:
        ManifestError: If a file holds no head importance.
        InputError: If its towers, layers or heads differ from the architecture of a model.
    """
    scores = {file.name: HeadImportance.read(file.ref) for file in analysing.scores}
    for file in analysing.scores:
        for model in (m for row in model_files for m in row):
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


def check_rows(analysing: AnalysisOptions, model_files: Sequence[Sequence[OpenModel]]) -> None:
    """Raise if an analysis selected by name needs a row that is missing. Analyses of `all` are not checked.

    Raises:
        InputError: The message names the analysis.
    """
    fits = {
        AnalysisNeeds.BASE: any(base_of(model, model_files) for row in model_files for model in row),
        AnalysisNeeds.MEMBERS: any(sum(len(m.header.masks) for m in row) > 1 for row in model_files),
        AnalysisNeeds.WHOLE: any(len(row) == 1 and row[0].header.kind == Kind.BASE for row in model_files),
        AnalysisNeeds.MERGED: any(separate_members_of(row, model_files) for row in model_files),
    }
    for name in analysing.named:
        for need in ANALYSES[name].needs:
            if not fits.get(need, True):
                raise InputError(f"`--analyse {name}` needs {need.value}", hint=HINTS[need])


def base_of(model: OpenModel, model_files: Sequence[Sequence[OpenModel]]) -> OpenModel | None:
    """Return the base of a pruned model, if a row is this base.

    Args:
        model: The model.
        model_files: Models of each row.

    Returns:
        The nearest of several bases in the model's lineage. None for a base, or if no row has the model's
        base.
    """
    bases = {row[0].checkpoint.digest: row[0] for row in model_files if len(row) == 1}
    bases = {digest: base for digest, base in bases.items() if base.header.kind == Kind.BASE}
    return (
        None
        if model.header.kind == Kind.BASE
        else next((bases[digest] for digest in _ancestors(model) if digest in bases), None)
    )


def separate_members_of(
    row: Sequence[OpenModel], model_files: Sequence[Sequence[OpenModel]]
) -> Sequence[OpenModel]:
    """Return the row with exactly the members that a hydra with merged weights was fused from.

    Returns:
        The members in fuse order. Empty if the first row is not such a hydra, or if no row has these members.
    """
    hydra, plan = row[0], row[0].header.plan
    if len(row) > 1 or plan is None or Fate.MERGED not in plan.fates.values() or hydra.header.made_by is None:
        return ()
    member_digests = [
        file.sha256 for file in hydra.header.made_by.inputs[: len(hydra.header.masks)]
    ]  # inputs after the members are data sets
    return next(
        (
            other_row
            for other_row in model_files
            if [m.checkpoint.digest for m in other_row] == member_digests
        ),
        (),
    )


def _ancestors(model: OpenModel) -> Iterator[str]:
    """Yield the digests of the files in a model's lineage, nearest step first, and last its base's digest."""
    for step in reversed(lineage_to(model.header.made_by)):
        yield from (file.sha256 for file in step.inputs)
    if model.header.base is not None:
        yield model.header.base
