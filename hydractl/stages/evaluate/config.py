"""Configuration of `eval`, checked before anything is read. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.data.corruptions.names import ALL, ALL_CORRUPTIONS, IMAGES, TEXTS, Corruptions
from hydractl.data.reference import ENDLESS_HINT, DataRef
from hydractl.errors import UsageError
from hydractl.manifest.shift_groups import scopes
from hydractl.manifest.terms import MOST_EXAMPLES, Guarantee
from hydractl.metrics import ood_scores
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, choose_metrics, needing
from hydractl.output.paths import PREDICTIONS, REPORT
from hydractl.processes.distributed import refuse_shared_input
from hydractl.settings import Constraint, Role, Setting, by_default, check, flag, required, setting
from hydractl.stages.evaluate import fail_if as threshold
from hydractl.stages.evaluate.analyses.settings import ANALYSING, NOTHING_ANALYSED, Analysing
from hydractl.stages.evaluate.baselines.base import BaselineOptions
from hydractl.stages.evaluate.baselines.registry import BASELINES
from hydractl.stages.evaluate.refs import (
    OOD_STREAMS,
    ROWS,
    STREAM,
    NamedData,
    NamedModels,
    check_distinct,
    check_rivals,
    check_whole,
    model_name,
)
from hydractl.stages.evaluate.set_options import NO_SETS, SET_OPTIONS, SetOptions
from hydractl.stages.shared import settings as shared
from hydractl.stages.shared.command_config import CommandConfig, InputRef
from hydractl.stages.shared.zero_shot_classes import NOTHING_NAMED, Naming

MEASURED = "Metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(shared.WithTemperature, CommandConfig):
    """What to measure, on which data, and what to write."""

    COMMAND: ClassVar[str] = "eval"

    model: str = required(shared.MODEL)
    """The model of the first row, to which `--fail-if` applies."""
    data: DataRef = required(
        Setting(
            f"Labelled test data: {shared.DATA_SOURCES}.",
            parse=STREAM,
            metavar=shared.DATA_METAVAR,
            shows_default=False,
            role=Role.DATA,
        )
    )
    near: tuple[NamedData, ...] = by_default((), OOD_STREAMS)
    far: tuple[NamedData, ...] = by_default(
        (), replace(OOD_STREAMS, help=f"Far OOD data; also {shared.UNLABELLED_SOURCES}.")
    )
    compare: tuple[NamedModels, ...] = by_default(
        (),
        replace(
            ROWS,
            help="Add a row: a model, an ensemble of several models, or a baseline `KIND:MODEL[::K=V,...]` of kind "
            f"{', '.join(BASELINES)} (docs/rivals.md).",
        ),
    )
    temperature: DataRef | float | None = by_default(
        None,
        replace(
            shared.TEMPERATURE,
            help="Fit a temperature for each row on labelled held-out data, or use the number; on top of a stored one.",
            panel=shared.DATA,
            shows_default=False,
        ),
    )
    corrupt: tuple[Corruptions, ...] = setting(
        (),
        f"Also measure `--data` under a corruption, at severities 1 to 5 (default: all five). `{ALL}`; for images "
        f"{', '.join(IMAGES)} (`frost=DIR`: its photographs); for texts {', '.join(TEXTS)}.",
        parse=Corruptions.parse,
        repeated=True,
        metavar="NAME[:1-5]",
        suggestions=(ALL, *ALL_CORRUPTIONS),
        panel=shared.DATA,
    )
    fit: DataRef | None = by_default(
        None,
        replace(
            shared.FIT,
            panel=shared.OOD,
            only_with=Constraint(
                "fitted",
                option="ood_score",
                why="no feature-based OOD score is measured",
                hint=f"leave it out, or add `{ood_scores.RELATIVE}` to `--ood-score`",
            ),
        ),
    )
    ood_val: tuple[NamedData, ...] = by_default(
        (),
        replace(
            OOD_STREAMS,
            help="Validation OOD data, to find the best OOD score on other data than `--near` and `--far`; needs `--val`.",
            panel=shared.OOD,
            needs=Constraint("val", why="OOD validation data are compared with held-out ID data"),
        ),
    )
    val: DataRef | None = setting(
        None,
        f"Held-out ID data for `--ood-val` and to standardize `{ood_scores.ENERGY_DENSITY}`.",
        only_with=Constraint(
            "reads_val", option="ood_val", why="nor is `--fit`", hint="leave it out, or add `--fit TRAIN`"
        ),
        parse=STREAM,
        metavar=shared.DATA_METAVAR,
        panel=shared.OOD,
        shows_default=False,
        role=Role.DATA,
    )
    name: str | None = setting(
        None, "Name of the first row (default: its file's).", metavar="NAME", panel=MEASURED
    )
    metrics: tuple[str, ...] | None = setting(
        None,
        f"Measure only these: {', '.join(METRICS)}.",
        parse=lambda text: tuple(text.split(",")),
        metavar="NAME,...",
        suggestions=tuple(METRICS),
        panel=MEASURED,
    )
    ood_score: tuple[str, ...] | None = setting(
        None,
        f"OOD scores, with options as in `knn:k=5`: {', '.join(ood_scores.SCORES)}; with `--fit`, or if models store them: "
        f"{', '.join(ood_scores.FITTED)}. Default: {ood_scores.MSP}, and {ood_scores.ENERGY_DENSITY} if stored, or with `--fit` and `--val`.",
        parse=lambda text: tuple(map(ood_scores.parse_score, text.split(","))),
        suggestions=ood_scores.EVERY,
        metavar="SCORE,...",
        panel=shared.OOD,
    )
    latency: bool = flag(
        Setting("Measure latency.", option_names=("--latency/--no-latency",), panel=MEASURED), on=True
    )
    """It differs between runs."""
    bootstrap: int = setting(
        200, "Resamples for 95 % intervals; 0 for none.", low=0, metavar="N", panel=MEASURED
    )
    fail_if: tuple[threshold.Condition, ...] = setting(
        (),
        "Exit with 5 if the condition holds for MODEL, for example `acc<95%` or `auroc[near]<0.9`.",
        parse=threshold.Condition.parse,
        repeated=True,
        metavar="COND",
    )
    threshold_for: float | None = by_default(None, threshold.THRESHOLD_FOR)
    guarantee: Guarantee | None = by_default(None, threshold.GUARANTEE)
    delta: float | None = by_default(None, threshold.CHANCE)
    label_thresholds: bool = flag(threshold.LABEL_THRESHOLDS)
    set_options: SetOptions = by_default(NO_SETS, SET_OPTIONS)
    store: Path | None = by_default(None, threshold.STORE)
    out: Path | None = by_default(
        None, replace(shared.OUT, check_path=REPORT, help="Report in JSON, or `-` for standard output.")
    )
    curves: bool = flag(
        Setting(
            "Keep curves, accuracy by class, head maps and lineage in the report, which the page of `hydractl report` shows.",
            option_names=("--curves/--no-curves",),
            panel=shared.OUTPUT,
        ),
        on=True,
    )
    keep_examples: int = setting(
        0,
        "Keep the N inputs with most disagreement and the N most confident mistakes in the report; `push` omits them.",
        low=0,
        high=MOST_EXAMPLES,
        metavar="N",
        panel=shared.OUTPUT,
    )
    save_predictions: Path | None = setting(
        None,
        "Write all log-probabilities, scaled by `--temperature`, as safetensors.",
        metavar="PATH",
        panel=shared.OUTPUT,
        check_path=PREDICTIONS,
        shows_default=False,
        role=Role.OUTPUT,
    )
    analysing: Analysing = by_default(NOTHING_ANALYSED, ANALYSING)
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    batch_size: int = by_default(64, shared.BATCH_SIZE)
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    skip_bad: bool = flag(shared.SKIP_BAD)
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    device: str = by_default("auto", replace(shared.DEVICE, role=Role.SHAPES))
    dtype: str | None = by_default(None, shared.DTYPE)
    arch: str | None = by_default(None, shared.ARCH)
    """Applies to `model` only."""
    seed: int = by_default(0, replace(shared.SEED, help="Seed of resamples and corruptions.", panel=MEASURED))
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(shared.IF_CHANGED)

    def __post_init__(self) -> None:
        check(self)
        check_rivals(self.model, self.compare, self.fitted)
        check_whole(self.data, "--corrupt", is_set=bool(self.corrupt))
        check_whole(self.data, "--keep-examples", is_set=self.keep_examples > 0)
        check_distinct([row.name for row in self.rows], kind="rows", option="--compare")
        check_distinct([d.name for d in self.ood + self.ood_val], kind="OOD data sets", option="--near")
        refuse_shared_input(*(model for row in self.rows for model in row.models))
        written = [path for path in (self.out, self.save_predictions, self.store) if path is not None]
        if len({*written}) < len(written):
            names = "`-o`" if self.store is None else "`-o`, `--store`"
            raise UsageError(f"{names} and `--save-predictions` name the same file")
        self._check_threshold()
        chosen = self.chosen  # refuses what cannot be measured
        self._check_scores()
        self.analysing.check_given(ood=self.ood, corrupted=self.corrupt)
        if self.corrupt and not needing(chosen, MetricNeeds.LABELS):
            raise UsageError(
                "`--corrupt` has no effect: no selected metric uses labelled data",
                hint="add one to `--metrics`, such as accuracy",
            )
        if self.ood and not needing(chosen, MetricNeeds.OOD, MetricNeeds.MEMBERS):
            raise UsageError("OOD data sets are given, but no selected metric uses them")
        corrupted = (
            (name, str(severity))
            for corruptions in self.corrupt
            for name in (ALL_CORRUPTIONS if corruptions.name == ALL else (corruptions.name,))
            for severity in corruptions.severities
        )
        # whether models hold the default score is not known yet
        self.check_conditions(corrupted, self.ood_score or (ood_scores.MSP, ood_scores.ENERGY_DENSITY))

    def check_conditions(self, corrupted: Iterable[tuple[str, str]], scores: Sequence[str]) -> None:
        """Check that all conditions refer to metrics that will be measured, given the corruptions and severities of the ID set.

        Raises:
            UsageError: If a condition does not; the hint has a valid one.
        """
        under = tuple(scopes(corrupted))
        for condition in self.fail_if:
            condition.check_measured(self.chosen, self.scopes, scores, under=under)

    def _check_threshold(self) -> None:
        fits = (self.threshold_for, self.set_options.sets, self.temperature, self.fit)
        if self.store and not self.label_thresholds and {*fits} == {None}:
            raise UsageError(
                "`--store`: the command fits nothing to store",
                hint=f"add `{threshold.OPTION} 'risk<=0.01'`, `--sets 0.9`, `--temperature DATA`, or `--fit TRAIN --val VAL`",
            )

    def _check_scores(self) -> None:
        ood_scores.check_scores(self.scores)
        if self.fit is not None and ood_scores.ENERGY_DENSITY in self.scores and self.val is None:
            raise UsageError(
                f"`--fit`: `{ood_scores.ENERGY_DENSITY}` needs held-out ID data to standardize it",
                hint=f"add `--val VAL`, or choose a score that needs none: `--ood-score {ood_scores.RELATIVE}`",
            )
        if self.standardized_on and self.standardized_on.endless:
            raise UsageError(f"`--val`: `{ood_scores.ENERGY_DENSITY}` cannot use a stream", hint=ENDLESS_HINT)
        if self.ood_score and not self.uses_scores:
            hint = "see `--metrics`" if self.ood else "leave it out, or add `--near NAME=DATA`"
            raise UsageError("`--ood-score` has no effect: no OOD metric is measured", hint=hint)
        if len({*self.scores}) < len(self.scores):
            raise UsageError(f"`--ood-score {','.join(self.scores)}` repeats a score")
        if self.ood_val and len(self.scores) == 1:
            raise UsageError(
                "`--ood-val` selects among several OOD scores, but only one is given",
                hint="name several: `--ood-score msp,energy,knn`",
            )

    @property
    def scores(self) -> tuple[str, ...]:
        """OOD scores; metrics of the first have no suffix."""
        return self.ood_score or (
            (ood_scores.MSP,) if self.fit is None else (ood_scores.MSP, ood_scores.ENERGY_DENSITY)
        )

    @property
    def uses_scores(self) -> bool:
        """Whether OOD scores are used."""
        return bool(self.threshold_for or (self.store and self.fit) or needing(self.chosen, MetricNeeds.OOD))

    @property
    def standardized_on(self) -> DataRef | None:
        """Held-out data to standardize `energy+density` on; None if it is not fitted."""
        return self.val if self.fit is not None and ood_scores.ENERGY_DENSITY in self.scores else None

    @property
    def reads_val(self) -> bool:
        """Whether `val` is used."""
        return bool(self.ood_val) or self.standardized_on is not None

    @property
    def fitted(self) -> tuple[str, ...]:
        """Feature-based OOD scores."""
        return tuple(score for score in self.scores if ood_scores.is_fitted(score))

    @property
    def promised(self) -> Guarantee:
        """Guarantee of the threshold."""
        return Guarantee(self.guarantee or Guarantee.ERRORS_AMONG_ACCEPTED)

    @property
    def has_confidence(self) -> bool:
        """Whether the guarantee holds with a confidence, not on average."""
        return self.promised is Guarantee.ERRORS_AMONG_ACCEPTED

    @property
    def chance(self) -> float | None:
        """Probability that the guarantee does not hold; None if it holds on average or there is no threshold."""
        return (self.delta or threshold.DELTA) if self.threshold_for and self.has_confidence else None

    @property
    def rows(self) -> tuple[NamedModels, ...]:
        """All rows of the table, that of the model first."""
        name = model_name(self.model) if self.name is None else self.name
        return (NamedModels(name=name, models=(self.model,)), *self.compare)

    @property
    def baselines(self) -> tuple[BaselineOptions, ...]:
        """Options of all baselines."""
        return tuple(rival for row in self.rows for _, rival in row.each() if rival is not None)

    @property
    def fitted_on(self) -> tuple[DataRef, ...]:
        """Data that rows are fitted on."""
        fitted = tuple(options.reads for options in self.baselines if options.reads is not None)
        return (*fitted, *(val for _, val in self.chosen_by))

    @property
    def chosen_by(self) -> tuple[tuple[DataRef, DataRef], ...]:
        """For each prior that is selected on held-out data, the data that its layer is fitted on, and the held-out data."""
        return tuple(
            (baseline.reads, baseline.val) for baseline in self.baselines if baseline.reads and baseline.val
        )

    @property
    def judged_on(self) -> dict[str, str]:
        """Data of `fitted_on` with labels, as texts, and their names in messages."""
        fitted = {
            str(baseline.reads): f"{baseline.KIND}: data={baseline.reads}"
            for baseline in self.baselines
            if baseline.LABELLED
        }
        return fitted | {
            str(baseline.val): f"{baseline.KIND}: val={baseline.val}"
            for baseline in self.baselines
            if baseline.val
        }

    @property
    @override
    def further_inputs(self) -> tuple[InputRef, ...]:
        """Inputs that are not single settings."""
        return tuple(InputRef(Role.DATA, ref) for ref in self.fitted_on)

    @property
    def ood(self) -> tuple[NamedData, ...]:
        """All OOD sets, near ones first."""
        return self.near + self.far

    @property
    def others(self) -> tuple[DataRef | None, ...]:
        """All data sets except `data`."""
        return (*(d.ref for d in self.ood + self.ood_val), self.temperature_data, self.fit, self.val)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Data sets of each mean; empty groups are left out."""
        groups = {"near": self.near, "far": self.far, "all": self.ood}
        return {group: tuple(d.name for d in sets) for group, sets in groups.items() if sets}

    @property
    def scopes(self) -> tuple[str, ...]:
        """Valid scopes of conditions."""
        return (*(d.name for d in self.ood), *self.groups)

    @property
    def chosen(self) -> tuple[str, ...]:
        """Metrics to measure, in the order of reports."""
        return choose_metrics(
            self.metrics, ood=bool(self.ood), latency=self.latency, scaled=self.temperature is not None
        )
