"""Each row as analyses see it, and what they find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydractl.data.batches import Batch
from hydractl.data.corruptions.names import Corruption
from hydractl.data.encode import with_corruption
from hydractl.errors import InputError
from hydractl.families.load import OpenModel
from hydractl.manifest.analyses import Analyses
from hydractl.manifest.head_mask import HeadScores
from hydractl.manifest.header import Fate, Kind, steps_to
from hydractl.manifest.shift_groups import ID_NAME
from hydractl.metrics.ood_scores import SCORES
from hydractl.metrics.per_sample import StoredPredictions
from hydractl.model_inputs import Inputs
from hydractl.processes.distributed import ProcessGroup
from hydractl.progress import Progress
from hydractl.stages.evaluate.analyses.context import AnalysisContext, ModelOfRow
from hydractl.stages.evaluate.analyses.settings import ANALYSES, NEEDS_OF_OPTIONS
from hydractl.stages.evaluate.analyses.spec import AnalysisNeeds
from hydractl.stages.evaluate.config import EvalConfig
from hydractl.stages.evaluate.cost import RowModels
from hydractl.stages.evaluate.data import EvalData
from hydractl.stages.evaluate.refs import NamedModels
from hydractl.stages.shared.prediction_store import PredictionStore
from hydractl.stages.shared.predictions import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyst:
    """Who asks rows, one after another.

    Attributes:
        config: Of the run.
        opened: The models of all rows.
        data: That they are asked about.
        corruptions: Of the ID set.
        scores: Of heads, by their names.
        team: Who shares the batches.
        progress: Hears what is done.
    """

    config: EvalConfig
    opened: Sequence[Sequence[OpenModel]]
    data: EvalData
    corruptions: Sequence[Corruption]
    scores: Mapping[str, HeadScores]
    team: ProcessGroup
    progress: Progress

    def of(
        self,
        named: NamedModels,
        row: RowModels,
        models: Sequence[OpenModel],
        predictions: Mapping[str, StoredPredictions],
        scaling: Scaling,
    ) -> Analyses | None:
        """Return what is found of a row; None where that is nothing, or not asked for.

        Args:
            named: What the row is called.
            row: Its models as they run; rivals are made of some.
            models: The same as they were opened.
            predictions: What it says of each data set, in the process that leads.
            scaling: Of its logits.

        Raises:
            InputError: If models do not belong together.
            DataError: If numbers are not finite.
        """
        analyses = [ANALYSES[name] for name in self.config.analysing.chosen_analyses]
        needs_met = self.config.analysing.needs_met(ood=self.config.ood, corrupted=self.config.corrupt)
        analyses = [
            analysis for analysis in analyses if not analysis.needs.intersection(NEEDS_OF_OPTIONS) - needs_met
        ]
        if not analyses:
            return None
        context = self._context(named, row, models, predictions, scaling)
        answers: dict[str, object] = {}
        for analysis in analyses:
            self.progress.step(f"Analysing {named.name}: {analysis.name}")
            if answer := analysis.of(context):
                answers[analysis.name] = answer
        return Analyses.model_validate(answers) if answers else None

    def _context(
        self,
        named: NamedModels,
        row: RowModels,
        models: Sequence[OpenModel],
        predictions: Mapping[str, StoredPredictions],
        scaling: Scaling,
    ) -> AnalysisContext:
        parts: list[ModelOfRow] = []
        has_baselines = any(named.rivals)  # which makes one model of several
        for opened, model in () if has_baselines else zip(models, row.models, strict=True):
            parts.append(ModelOfRow(opened, model, sum(part.members for part in parts)))
        return AnalysisContext(
            parts=parts,
            base=next((base_model for model in models if (base_model := base_of(model, self.opened))), None),
            separate_members=() if has_baselines else apart_of(models, self.opened),
            batches=self._batches,
            counts={name: len(inputs) for name, inputs in self.data.inputs.items()},
            labels=self.data.summary.labels,
            ood=self.config.groups,
            corruptions=self.corruptions,
            scores=self.scores,
            predictions=predictions,
            spool=PredictionStore,
            scaled=scaling,
            metrics=self.config.chosen,
            ranks=self._ranks(),
            classes=self.data.classes,
            seed=self.config.seed,
            team=self.team,
            progress=self.progress,
        )

    def _ranks(self) -> list[str]:
        """Return the OOD scores that follow from predictions; none where the first, which has no name, does not."""
        scores = self.config.scores
        return [score for score in scores if score in SCORES] if scores[0] in SCORES else []

    def _batches(self, part: ModelOfRow, of: str | Corruption) -> Iterable[Batch[Inputs]]:
        if isinstance(of, Corruption):
            clean = self.data.inputs[ID_NAME]
            corrupted = with_corruption(clean.dataset, of)
            inputs = clean.of(corrupted, name=f"{of.name} {of.severity}")
        else:
            inputs = self.data.inputs[of]
        return inputs.tracked(part.opened.header.preprocess, part.opened.reference, self.progress)


def read_scores(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> dict[str, HeadScores]:
    """Return the scores of heads that are named.

    Raises:
        ManifestError: If a file holds none.
        InputError: If they are of another architecture's heads.
    """
    scores = {
        named_scores.name: HeadScores.read(named_scores.ref) for named_scores in config.analysing.scores
    }
    for given in config.analysing.scores:
        for model in (m for row in opened for m in row):
            architecture = model.header.architecture
            for name, table in scores[given.name].towers.items():
                tower = architecture.towers.get(name)
                if tower is None or (len(table.scores), len(table.scores[0])) != (
                    tower.layers,
                    tower.num_heads,
                ):
                    raise InputError(
                        f"{given.ref}: its scores are for a tower `{name}` with {len(table.scores)} "
                        f"layers of {len(table.scores[0])} heads, which {model.reference} does not have",
                        hint="score the base of the pruned models",
                    )
    return scores


def check_rows(config: EvalConfig, opened: Sequence[Sequence[OpenModel]]) -> None:
    """Refuse an analysis by name that no row is fit for, before data are read.

    Raises:
        InputError: If there is one.
    """
    fit = {
        AnalysisNeeds.BASE: any(base_of(model, opened) for row in opened for model in row),
        AnalysisNeeds.MEMBERS: any(sum(len(m.header.masks) for m in row) > 1 for row in opened),
        AnalysisNeeds.WHOLE: any(len(row) == 1 and row[0].header.kind == Kind.BASE for row in opened),
        AnalysisNeeds.MERGED: any(apart_of(row, opened) for row in opened),
    }
    hints = {
        AnalysisNeeds.BASE: "add the base of the pruned models: `--compare base=BASE`",
        AnalysisNeeds.MEMBERS: "measure a hydra, or several models as a row: `--compare 'NAME=a.st,b.st'`",
        AnalysisNeeds.WHOLE: "add it: `--compare base=BASE`",
        AnalysisNeeds.MERGED: "add them: `--compare 'apart=m0.st,m1.st,m2.st'`",
    }
    for name in config.analysing.named:
        for need, row_models in fit.items():
            if need in ANALYSES[name].needs and not row_models:
                raise InputError(f"`--analyse {name}` needs {need.value}", hint=hints[need])


def base_of(model: OpenModel, opened: Sequence[Sequence[OpenModel]]) -> OpenModel | None:
    """Return the base that a model was pruned from, if it is a row: of several in its lineage the nearest."""
    bases = {row[0].checkpoint.digest: row[0] for row in opened if len(row) == 1}
    bases = {digest: base for digest, base in bases.items() if base.header.kind == Kind.BASE}
    if model.header.kind == Kind.BASE:
        return None
    return next((bases[digest] for digest in _ancestors(model) if digest in bases), None)


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
