"""Configuration of `eval`, checked before any input is read. Importing this module does not load torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from hydractl.data.reference import DataRef
from hydractl.errors import UsageError
from hydractl.evaluation import options as threshold
from hydractl.evaluation.options import (
    OOD_SETS,
    ROWS,
    EvalExtension,
    NamedData,
    NamedModels,
    check_distinct,
    model_name,
)
from hydractl.manifest.terms import MOST_EXAMPLES, Guarantee, Risk, SetMethod, SetRule
from hydractl.metrics import ood_scores
from hydractl.metrics.metric_spec import MetricNeeds
from hydractl.metrics.registry import METRICS, choose_metrics, needing
from hydractl.output.publish import PREDICTIONS, REPORT
from hydractl.plugins import added
from hydractl.prediction.class_names import NOTHING_NAMED, Naming
from hydractl.processes.distributed import refuse_shared_input
from hydractl.provenance.command_config import IF_CHANGED, CommandConfig, InputRef
from hydractl.settings import (
    CheckedSettings,
    Constraint,
    OptionGroup,
    Role,
    Setting,
    by_default,
    check,
    check_extensions,
    details,
    extension_field,
    flag,
    options_of,
    required,
    setting,
)
from hydractl.stages import options as shared

SETS, SETS_PANEL = "--sets", "Prediction sets"
RAPS_PENALTY, RAPS_RANK = 0.01, 5
"""Penalty and rank of RAPS for ImageNet, from its paper. Twice the penalty shrinks large sets; twice the rank
leaves more classes without penalty."""
OF_RAPS = Constraint("set_method", (SetMethod.RAPS,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOptions(CheckedSettings):
    """Options for prediction sets. `sets` is None if no sets are fitted."""

    sets: float | None = setting(
        None,
        "Fit prediction sets on held-out `--data`: the set of an input contains its class with this probability.",
        above=0.0,
        below=1.0,
        shows_range=False,
        range_hint="write 90 % as 0.9",
        metavar="COVERAGE",
        panel=SETS_PANEL,
    )
    set_method: SetMethod | None = setting(
        None,
        f"How sets rank classes (default: {SetMethod.LAC}, which gives the smallest sets).",
        choices=tuple(SetMethod),
        panel=SETS_PANEL,
        shows_default=False,
        only_with="sets",
    )
    sets_by_class: bool = flag(
        Setting("Let the probability hold for each class.", panel=SETS_PANEL, only_with="sets")
    )
    raps_penalty: float | None = setting(
        None,
        f"What `{SetMethod.RAPS}` adds for each class beyond `--raps-rank` (default: {RAPS_PENALTY:g}).",
        low=0,
        metavar="X",
        panel=SETS_PANEL,
        only_with=OF_RAPS,
    )
    raps_rank: int | None = setting(
        None,
        f"Classes up to this rank have no penalty (default: {RAPS_RANK}).",
        low=1,
        metavar="K",
        panel=SETS_PANEL,
        only_with=OF_RAPS,
    )

    @property
    def rule(self) -> SetRule | None:
        """Coverage and method of the sets; None if no sets are fitted."""
        if self.sets is None:
            return None
        rule = SetRule(self.sets, SetMethod(self.set_method or SetMethod.LAC), self.sets_by_class)
        if rule.method is not SetMethod.RAPS:
            return rule
        penalty = RAPS_PENALTY if self.raps_penalty is None else self.raps_penalty
        return rule._replace(penalty=penalty, rank=self.raps_rank or RAPS_RANK)

    @property
    def recorded(self) -> dict[str, str | float | bool | None]:
        """Options of the sets in a step and a report; empty if no sets are fitted."""
        if self.rule is None:
            return {}
        return {
            "sets": self.sets,
            "set_method": self.rule.method.value,
            "sets_by_class": self.sets_by_class or None,
            "raps_penalty": self.rule.penalty,
            "raps_rank": self.rule.rank,
        }


NO_SETS = SetOptions()
SET_OPTIONS = OptionGroup(lambda options: SetOptions(**options), options_of(SetOptions))


MEASURED = "Metrics"
MEASURED_SETS = replace(
    OOD_SETS,
    only_with=Constraint(
        lambda config: (
            needing(config.chosen, MetricNeeds.OOD, MetricNeeds.MEMBERS)
            or (config.ood_score and not config.uses_scores)
        ),  # `--ood-score` has its own constraint with a clearer message
        message="OOD data sets are given, but no selected metric uses them",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(shared.WithTemperature, CommandConfig):
    """Options of `eval`."""

    COMMAND: ClassVar[str] = "eval"
    COMMON = (
        "data",
        "near",
        "far",
        "compare",
        "fail_if",
        "out",
        "temperature",
        "train",
        "val",
        "ood_score",
        "threshold_for",
        "save_model",
    )

    model: str = required(shared.MODEL)
    """Model of the first row. `--fail-if` applies to this row."""
    data: DataRef = required(
        Setting(
            f"Labelled test data.{shared.DATA_DETAILS}",
            parse=DataRef.parse,
            metavar=shared.DATA_METAVAR,
            shows_default=False,
            role=Role.DATA,
        )
    )
    near: tuple[NamedData, ...] = by_default((), MEASURED_SETS)
    far: tuple[NamedData, ...] = by_default(
        (), replace(MEASURED_SETS, help=f"Far OOD data; also {shared.UNLABELLED_SOURCES}.")
    )
    compare: tuple[NamedModels, ...] = by_default(
        (),
        replace(
            ROWS,
            help=f"Add a row: a model, an ensemble of several models{''.join(syntax.help for syntax in added('rows'))}.",
            suggestions=tuple(f"{kind}:" for syntax in added("rows") for kind in syntax.kinds),
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
    train: DataRef | None = by_default(
        None,
        replace(
            shared.TRAIN,
            panel=shared.OOD,
            needs=Constraint(
                lambda config: config.val is not None or ood_scores.ENERGY_DENSITY not in config.scores,
                message=f"`--train`: `{ood_scores.ENERGY_DENSITY}` needs held-out ID data to standardize it",
                hint=f"add `--val VAL`, or choose a score that needs none: `--ood-score {ood_scores.RELATIVE}`",
            ),
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
            OOD_SETS,
            help="Validation OOD data, to find the best OOD score on other data than `--near` and `--far`; needs `--val`.",
            panel=shared.OOD,
            needs=(
                Constraint("val", why="OOD validation data are compared with held-out ID data"),
                Constraint(
                    lambda config: len(config.scores) > 1,
                    message="`--ood-val` selects among several OOD scores, but only one is given",
                    hint="name several: `--ood-score msp,energy,knn`",
                ),
            ),
        ),
    )
    val: DataRef | None = setting(
        None,
        f"Held-out ID data for `--ood-val` and to standardize `{ood_scores.ENERGY_DENSITY}`.",
        only_with=Constraint(
            "reads_val", option="ood_val", why="nor is `--train`", hint="leave it out, or add `--train TRAIN`"
        ),
        parse=DataRef.parse,
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
        "Measure only these." + details(f"Metrics: {', '.join(METRICS)}."),
        parse=lambda text: tuple(text.split(",")),
        metavar="NAME,...",
        suggestions=tuple(METRICS),
        panel=MEASURED,
    )
    ood_score: tuple[str, ...] | None = setting(
        None,
        "OOD scores, with options as in `knn:k=5`."
        + details(
            f"{', '.join(ood_scores.SCORES)}; with `--train`, or if models store them: {', '.join(ood_scores.FITTED)}."
        )
        + f"Default: {ood_scores.MSP}, and {ood_scores.ENERGY_DENSITY} if stored, or with `--train` and `--val`.",
        parse=lambda text: tuple(map(ood_scores.parse_score, text.split(","))),
        suggestions=ood_scores.EVERY,
        metavar="SCORE,...",
        panel=shared.OOD,
        only_with=Constraint(
            "uses_scores",
            message="`--ood-score` has no effect: no measured metric uses OOD scores",
            hint="see `--metrics`",
        ),
    )
    latency: bool = flag(
        Setting("Measure latency.", option_names=("--latency/--no-latency",), panel=MEASURED), on=True
    )
    """Latency differs between runs, also on the same machine."""
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
    keep_known: float | None = by_default(None, threshold.KEEP_KNOWN)
    guarantee: Guarantee | None = by_default(None, threshold.GUARANTEE)
    delta: float | None = by_default(None, threshold.CHANCE)
    label_thresholds: bool = flag(threshold.LABEL_THRESHOLDS)
    set_options: SetOptions = by_default(NO_SETS, SET_OPTIONS)
    save_model: Path | None = by_default(
        None,
        replace(
            threshold.SAVE_MODEL,
            needs=Constraint(
                lambda config: (
                    config.label_thresholds
                    or {
                        config.threshold_for,
                        config.keep_known,
                        config.set_options.sets,
                        config.temperature,
                        config.train,
                    }
                    != {None}
                ),
                message="`--save-model`: the command fits nothing to store",
                hint=f"add `{threshold.THRESHOLD_OPTION} 'risk<=0.01'`, `--sets 0.9`, `--temperature DATA`, or `--train TRAIN --val VAL`",
            ),
        ),
    )
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
        "Keep five answers, the N inputs with most disagreement and the N most confident mistakes in the report; `push` omits them.",
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
    extensions: tuple[EvalExtension, ...] = extension_field("eval")
    max_length: int | None = by_default(None, shared.MAX_LENGTH)
    batch_size: int = by_default(64, shared.BATCH_SIZE)
    num_workers: int | None = by_default(None, shared.NUM_WORKERS)
    skip_bad: bool = flag(shared.SKIP_BAD)
    naming: Naming = by_default(NOTHING_NAMED, shared.NAMING)
    device: str = by_default("auto", replace(shared.DEVICE, role=Role.SHAPES))
    dtype: str | None = by_default(None, shared.DTYPE)
    arch: str | None = by_default(None, shared.ARCH)
    """Applies only to `model`."""
    seed: int = by_default(0, replace(shared.SEED, help="Seed of resamples and corruptions.", panel=MEASURED))
    force: bool = flag(shared.FORCE)
    if_changed: bool = flag(IF_CHANGED)

    def __post_init__(self) -> None:
        check(self)
        check_extensions(self)
        check_distinct([row.name for row in self.rows], kind="rows", option="--compare")
        check_distinct([d.name for d in self.ood + self.ood_val], kind="OOD data sets", option="--near")
        refuse_shared_input(*(model for row in self.rows for model in row.models))
        written = [path for path in (self.out, self.save_predictions, self.save_model) if path is not None]
        if len({*written}) < len(written):
            names = "`-o`" if self.save_model is None else "`-o`, `--save-model`"
            raise UsageError(f"{names} and `--save-predictions` name the same file")
        ood_scores.check_scores(self.scores)
        if len({*self.scores}) < len(self.scores):
            raise UsageError(f"`--ood-score {','.join(self.scores)}` repeats a score")
        # The headers of models decide about the default score, but they are not read yet.
        scopes = [scope for extension in self.extensions for scope in extension.scopes]
        self.check_conditions(scopes, self.ood_score or (ood_scores.MSP, ood_scores.ENERGY_DENSITY))

    def check_conditions(self, under: Sequence[str], scores: Sequence[str]) -> None:
        """Check that all conditions of `--fail-if` refer to measured metrics.

        Args:
            under: Further scopes of labelled data.
            scores: OOD scores that will be measured.

        Raises:
            UsageError: If a condition refers to another metric. The hint has a valid condition.
        """
        for condition in self.fail_if:
            hints = (extension.scope_hint(condition.scope, under) for extension in self.extensions)
            hint = next(filter(None, hints), None)
            condition.check_measured(self.chosen, self.scopes, scores, under=under, hint=hint)

    @property
    def scores(self) -> tuple[str, ...]:
        """OOD scores. Metrics of the first score have no suffix."""
        return self.ood_score or (
            (ood_scores.MSP,) if self.train is None else (ood_scores.MSP, ood_scores.ENERGY_DENSITY)
        )

    @property
    def uses_scores(self) -> bool:
        """Whether a metric, a threshold or `--save-model` uses OOD scores."""
        return self.uses_stored_scores or bool(needing(self.chosen, MetricNeeds.CERTAINTY))

    @property
    def uses_stored_scores(self) -> bool:
        """Whether the scores that all models store are used by default."""
        fits = self.threshold_for or self.keep_known or (self.save_model and self.train)
        return bool(fits or needing(self.chosen, MetricNeeds.OOD))

    @property
    def standardized_on(self) -> DataRef | None:
        """Held-out data for standardizing `energy+density`; None if the score is not fitted."""
        return self.val if self.train is not None and ood_scores.ENERGY_DENSITY in self.scores else None

    @property
    def reads_val(self) -> bool:
        """Whether `val` is used."""
        return bool(self.ood_val) or self.standardized_on is not None

    @property
    def fitted(self) -> tuple[str, ...]:
        """The feature-based scores among the OOD scores."""
        return tuple(score for score in self.scores if ood_scores.is_fitted(score))

    @property
    def promised(self) -> Guarantee:
        """Guarantee of the threshold."""
        return Guarantee(self.guarantee or Guarantee.ERRORS_AMONG_ACCEPTED)

    @property
    def has_confidence(self) -> bool:
        """Whether the guarantee holds with a confidence instead of on average."""
        return self.promised is Guarantee.ERRORS_AMONG_ACCEPTED

    @property
    def chance(self) -> float | None:
        """Probability that the guarantee does not hold; None without a threshold or confidence."""
        return (self.delta or threshold.DELTA) if self.threshold_for and self.has_confidence else None

    @property
    def risk(self) -> Risk | None:
        """Errors allowed by the threshold; None if no threshold is fitted."""
        return Risk(self.threshold_for, self.promised, self.chance) if self.threshold_for else None

    @property
    def guaranteed(self) -> tuple[str, ...]:
        """Given options with a guarantee."""
        levels = {
            threshold.THRESHOLD_OPTION: self.threshold_for,
            threshold.KEEP_KNOWN_OPTION: self.keep_known,
            SETS: self.set_options.sets,
        }
        return tuple(option for option, level in levels.items() if level is not None)

    @property
    def rows(self) -> tuple[NamedModels, ...]:
        """All rows of the table. The row of `model` comes first."""
        name = model_name(self.model) if self.name is None else self.name
        return (NamedModels(name=name, models=(self.model,)), *self.compare)

    @property
    @override
    def further_inputs(self) -> tuple[InputRef, ...]:
        """Inputs of extensions."""
        return tuple(ref for extension in self.extensions for ref in extension.further_inputs(self))

    @property
    def ood(self) -> tuple[NamedData, ...]:
        """All OOD sets; near sets come first."""
        return self.near + self.far

    @property
    def others(self) -> tuple[DataRef | None, ...]:
        """All data sets except `data`; None for options that are not given."""
        return (*(d.ref for d in self.ood + self.ood_val), self.temperature_data, self.train, self.val)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Names of the OOD sets in each group: `near`, `far` and `all`. Empty groups are left out."""
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
