"""Measure baselines, corruptions and analyses in a run of `eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from typing_extensions import override

from hydractl.data.datasets import Content, content_of
from hydractl.evaluation.data import check_one_question
from hydractl.evaluation.options import NamedModels
from hydractl.evaluation.rows import Evaluation, LoadedRow, RowMeasurer
from hydractl.families.open_model import OpenModel
from hydractl.manifest.document import Fingerprint
from hydractl.manifest.head_mask import HeadImportance
from hydractl.manifest.report import Report, Row
from hydractl.manifest.terms import ID_NAME
from hydractl.metrics.ood_scores import MSP
from hydractl.prediction.feature_ood import Predictor
from hydractl.prediction.open_inputs import Identity
from hydractl.research.analyses.context import analyse, check_rows, read_importances
from hydractl.research.baselines.options import baselines_of, data_of
from hydractl.research.baselines.rows import (
    BaselineInputs,
    FittedData,
    baselines_of_row,
    build_baseline,
    check_baseline,
    overlaps,
)
from hydractl.research.corruptions.measure import ShiftNumbers, check_photographs, measure_corrupted
from hydractl.research.corruptions.names import Corruption, expand_corruptions, scopes_of
from hydractl.research.evaluation import ResearchEval
from hydractl.research.schema import Derived
from hydractl.runtime import digest_file
from hydractl.stages.evaluate.config import EvalConfig


@dataclass(slots=True)
class ResearchMeasurer(RowMeasurer):
    """Measurements of research in a run of `eval`.

    Attributes:
        options: Options of the run.
        scores: Contents of the head importance files, by name.
        corruptions: Corruptions of the ID set.
        scopes: Names of the corruptions for conditions of `--fail-if`, for example `fog:3` and `shift`.
        first_shift: Metrics of the first row under corruptions; None before the first row, and without
            corruptions.
        fitted_on: Data of the baselines' `data=` and `val=`, by reference.
        derived: Record of the baseline of each model of the current row; empty if the row has no baselines.
    """

    options: ResearchEval
    scores: Mapping[str, HeadImportance]
    corruptions: Sequence[Corruption]
    scopes: Sequence[str]
    first_shift: ShiftNumbers | None = None
    fitted_on: dict[str, FittedData] = field(default_factory=dict)
    derived: tuple[Derived | None, ...] = ()

    @override
    def open_data(self, run: Evaluation) -> None:
        data, options = run.data, baselines_of(run.named)
        skipped: list[str] = []
        labelled = {str(o.data_ref): f"{o.KIND}: data={o.data_ref}" for o in options if o.LABELLED}
        labelled |= {str(o.val): f"{o.KIND}: val={o.val}" for o in options if o.val}
        contents = {}
        for name, ref in data_of(options).items():
            dataset = run.open_data(ref, skipped)
            labels = data.alignment.aligned(labelled[name], dataset) if name in labelled else torch.empty(0)
            identity = Identity.of(dataset, run.team)
            contents[name] = identity.content
            self.fitted_on[name] = FittedData(dataset, identity.fingerprint, labels)
        run.warn(skipped)
        if contents:
            run.warn(overlaps(options, data.identities[ID_NAME].content, contents))
        for named, model_file in zip(run.named, run.model_files, strict=True):
            for baseline, places in baselines_of_row(named):
                if baseline is not None:
                    check_baseline(baseline, model_file[places], data.classes)

    @override
    def derive(
        self,
        run: Evaluation,
        named: NamedModels,
        predictors: Sequence[Predictor],
        model_files: Sequence[OpenModel],
    ) -> Sequence[Predictor]:
        self.derived = ()
        if not named.is_derived:
            return predictors
        row: list[Predictor] = []
        for options, places in baselines_of_row(named):
            predictor, files, described = predictors[places.start], model_files[places], None
            if options is not None:
                parts = [part.model for part in predictors[places]]
                inputs = BaselineInputs(parts, files, run.data, self.fitted_on)
                model, described = build_baseline(options, inputs)
                predictor = replace(predictor, model=model)
            row.append(predictor)
            self.derived += (described,) * len(files)
        return row

    @override
    def measure(self, run: Evaluation, row: LoadedRow) -> Callable[[Row], Row]:
        names = self.options.applicable_analyses(has_ood=bool(run.measurement.ood))
        shift = measure_corrupted(run, row, self.corruptions)
        fields: dict[str, object] = {
            "derived": self.derived,
            "shift": None if shift is None else shift.to_shift(),
            "analyses": analyse(names, self.scores, self.corruptions, run, row),
        }

        def add(measured: Row) -> Row:
            run.warn(
                f"{row.named.name}: predictions and probabilities are those of {row.model_files[0].reference}; "
                f"calibration errors, curves and `{MSP}` use the confidence that `{options.KIND}:` estimates"
                for options in baselines_of([row.named])
                if options.OWN_CONFIDENCE
            )
            if shift is not None and self.first_shift is not None and measured.difference is not None:
                gaps = {"shift": self.first_shift.differences(shift)}
                fields["difference"] = measured.difference.model_copy(update=gaps)
            self.first_shift = self.first_shift or shift
            return measured.model_copy(update=fields)

        return add

    @override
    def complete(self, report: Report) -> Report:
        analysing = self.options.analysing
        scores = tuple(
            Fingerprint(reference=f"{scores.name}={scores.ref.name}", sha256=digest_file(scores.ref))
            for scores in analysing.scores
        )
        corrupt = self.options.corrupt
        recorded = {
            "corrupt": tuple(map(str, corrupt)),
            "frost": next((c.photographs.sha256 for c in corrupt if c.photographs), None),
            "analyse": analysing.analyse,
        }
        options = report.options | {name: value for name, value in recorded.items() if value}
        return report.model_copy(update={"scores": scores, "options": options})


def begin(
    options: ResearchEval, config: EvalConfig, model_files: Sequence[Sequence[OpenModel]]
) -> ResearchMeasurer:
    """Check models and options, and read head importance files, before data are opened.

    Raises:
        UsageError: If options do not fit together, or do not fit the models.
        InputError: If an analysis needs a row that is missing, or a head importance file has other heads than
            a model.
        DataError: If a photograph for `frost` is too small or cannot be read.
    """
    first, analysing = model_files[0][0], options.analysing
    named = {
        "--analyse": bool(analysing.analyse),
        "--compare KIND:MODEL": any(row.is_derived for row in config.compare),
    }
    check_one_question(named, first)
    check_rows(analysing, model_files)
    texts = content_of(first.header.preprocess) is Content.TEXTS
    corruptions = expand_corruptions(options.corrupt, texts=texts, seed=config.seed)
    check_photographs(corruptions, first.header.preprocess)
    return ResearchMeasurer(
        options=options,
        scores=read_importances(analysing, model_files),
        corruptions=corruptions,
        scopes=scopes_of((corruption.name, corruption.severity) for corruption in corruptions),
    )
