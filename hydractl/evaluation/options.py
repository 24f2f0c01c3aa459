"""Parsers for options of `eval`: `NAME=DATA`, `NAME=MODEL[,MODEL...]`, and conditions of `--fail-if`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from hydractl.data.reference import DataRef, SourceKind, continues_map, split_keys
from hydractl.errors import DataError, UsageError
from hydractl.manifest.terms import ID_NAME, Guarantee
from hydractl.messages import did_you_mean, quoted
from hydractl.metrics.metric_spec import BY_SCORE, MetricNeeds, Unit
from hydractl.metrics.ood_scores import EVERY, MSP, kind_of, number_name
from hydractl.metrics.registry import FIT, METRICS, TEMPERATURE, VAL, metric_named
from hydractl.model_source import named, split_options, unclosed
from hydractl.output.publish import WEIGHTS, output
from hydractl.plugins import added
from hydractl.provenance.command_config import NamedInputs
from hydractl.settings import Constraint, Extension, Role, Setting, number

if TYPE_CHECKING:
    from hydractl.families.open_model import OpenModel
    from hydractl.manifest.document import Value
    from hydractl.manifest.report import Check, Row
    from hydractl.provenance.command_config import InputRef


# `=` and `,` separate names from references, `:` marks a reference, conditions use brackets, and tensor names
# use `/`.
NAME = re.compile(r"[^=,:/\[\]\s](?:[^=,:/\[\]]*[^=,:/\[\]\s])?")
OPTION_NAME = re.compile(r"[\w-]+=")
RESERVED = (ID_NAME, "near", "far", "all", TEMPERATURE, FIT, VAL)
WEIGHTS_SUFFIXES = {".st", ".safetensors"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedData(NamedInputs):
    """An OOD data set with its name in tables."""

    name: str
    ref: DataRef

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.name.casefold() in RESERVED:
            raise UsageError(
                f"an OOD data set cannot be called `{self.name}`",
                hint=f"{quoted(RESERVED)} are reserved names in a report",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text that names one data set, in the syntax of `parse_all`.

        Raises:
            UsageError: If the text is malformed or names several data sets.
        """
        name, reference = _split_name(text)
        ref = DataRef.parse(reference)
        ((preset_name, _),) = DataRef.parse_all(reference)
        return cls(name=name or preset_name or _source_name(ref), ref=ref)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Self, ...]:
        """Parse `NAME=DATA`, or DATA without a name.

        A data set without a name is called after its source. The data sets of a preset have their own names.

        Raises:
            UsageError: If the name or the reference is malformed, or one name is given for several sets.
        """
        name, reference = _split_name(text)
        sets = DataRef.parse_all(reference)
        if name is not None and len(sets) > 1:
            raise UsageError(
                f"`{text}`: one name stands for {len(sets)} data sets",
                hint=f"leave out the name: the sets of `{reference}` have their own",
            )
        return tuple(cls(name=name or preset_name or _source_name(ref), ref=ref) for preset_name, ref in sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModels(NamedInputs):
    """A row of the table: one model, or several models with averaged predictions.

    Plugins define subclasses for rows of models that they derive.

    Attributes:
        is_derived: Whether a plugin derives other models from these.
        name: Name in tables.
        models: References of the models.
        typed: Text of the models on the command line, without `NAME=`; empty if the row was created in
            Python.
    """

    is_derived: ClassVar[bool] = False
    name: str
    models: tuple[str, ...]
    typed: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.models or not all(self.models):
            raise UsageError(
                f"`{self.name}`: an empty model reference",
                hint="for example `'Deep ensemble=a.st,b.st,c.st'`",
            )

    @property
    def trains(self) -> bool:
        """Whether models are trained while the row is measured."""
        return False

    @staticmethod
    def parse(text: str) -> NamedModels:
        """Parse `NAME=MODEL[,MODEL...]`, or models without a name, which are called after the first model.

        Raises:
            UsageError: If the name or a reference is malformed.
        """
        name, row = _split_name(text)
        syntaxes: list[RowSyntax] = added("rows")
        if derived := next(filter(None, (syntax.parse(name, row) for syntax in syntaxes)), None):
            return derived
        models = split_models(row)
        return NamedModels(name=model_name(models[0]) if name is None else name, models=models, typed=row)


class RowSyntax(NamedTuple):
    """Syntax of rows that a plugin adds to `--compare`.

    Attributes:
        parse: Parses a row from its name, or `None`, and its text. Returns `None` for a row of plain models.
        kinds: Prefixes of references, without `:`.
        help: Text at the end of the option's help.
    """

    parse: Callable[[str | None, str], NamedModels | None]
    kinds: tuple[str, ...]
    help: str


OOD_SETS = Setting(
    "Near OOD data.",
    parse=NamedData.parse_all,
    repeated=True,
    metavar="NAME=DATA",
    role=Role.DATA,
)
ROWS = Setting(
    "Add a row, as in `eval --compare`.",
    parse=NamedModels.parse,
    repeated=True,
    metavar="NAME=MODEL[,MODEL...]",
    role=Role.MODEL,
)


def model_name(reference: str) -> str:
    """Return the name of a model without an explicit name: the last part of its reference.

    The suffixes `.st` and `.safetensors` are removed. Standard input (`-`) has the name `stdin`.

    Raises:
        UsageError: If the reference has no file name, such as the root of the file system.
    """
    if reference == "-":
        return "stdin"
    last = named(Path(reference.removeprefix("arch:").partition("::")[0]))
    if not last.name:
        raise UsageError(
            f"`{reference}`: needs a name for the tables",
            hint="use `--name NAME` for MODEL and `NAME=...` for other rows",
        )
    return last.stem if last.suffix in WEIGHTS_SUFFIXES else last.name


def check_name(name: str) -> None:
    """Raise if a name cannot be used in options, tables and files.

    Raises:
        UsageError: If the name is empty, begins or ends with a space, or contains one of `= , : / [ ]`.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` is not a valid name: it begins or ends with a space, or contains one of `= , : / [ ]`"
            if name
            else "a name is empty",
            hint="choose another: use `--name NAME` for MODEL and `NAME=...` for other rows",
        )


def check_distinct(names: Sequence[str], *, kind: str, option: str) -> None:
    """Raise if two rows or two data sets have the same name.

    Args:
        names: All names.
        kind: Plural noun for the message.
        option: Option that gives names, for the hint.

    Raises:
        UsageError: With the repeated name.
    """
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{names.count(name)} {kind} have the name `{name}`",
                hint=f"give each its own name: `{option} NAME=...`",
            )


def _split_name(text: str) -> tuple[str | None, str]:
    """Split at the first `=`, unless the text before it belongs to a reference."""
    name, equals, reference = text.partition("=")
    if not equals or ":" in name or "/" in name:
        return None, text
    return name, reference


def split_models(text: str, belongs: Callable[[str, str], bool] = lambda *_: False) -> tuple[str, ...]:
    """Split a list of model references at commas.

    Args:
        text: References separated by commas. Commas between options of an `arch:` reference do not separate.
        belongs: Returns whether a part (second argument) continues the previous reference (first argument).
    """
    models: list[str] = []
    for part in text.split(","):
        if models and (_is_of_arch(models[-1], part) or belongs(models[-1], part)):
            models[-1] += f",{part}"
        else:
            models.append(part)
    return tuple(models)


def _is_of_arch(reference: str, part: str) -> bool:
    last, has_options, options = reference.partition("::")
    if not (has_options and last.startswith("arch:")):
        return False
    return unclosed(split_options(options)[-1]) or continues_options(options, part)


def continues_options(options: str, part: str) -> bool:
    """Return whether the text after a comma belongs to the options before the comma.

    It is another option (`NAME=VALUE`), or another class in the renaming of the last data set.
    """
    return bool(OPTION_NAME.match(part)) or continues_map(split_keys(options.rpartition("::")[2])[-1], part)


def _source_name(ref: DataRef) -> str:
    if ref.kind is SourceKind.HUB:
        return ref.repo_id.rpartition("/")[2]
    path = Path(ref.source)
    return path.stem if ref.kind is SourceKind.FILE else path.resolve().name


OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
GRAMMAR = re.compile(
    r"\s*(?P<metric>\w+)(?:@(?P<score>[\w+-]+(?::\w+=[\w.]+)*))?\s*(?:\[\s*(?P<scope>[^\[\]]*?)\s*\])?\s*(?P<operator>>=|<=|>|<)\s*(?P<bound>\S+)\s*"
)
EXAMPLES = (
    "for example `--fail-if 'ece>0.02'` or `--fail-if 'auroc[near]<0.9'` or `--fail-if 'acc[fog:3]<80%'`"
)
THRESHOLD_OPTION, KEEP_KNOWN_OPTION, PANEL = "--threshold-for", "--keep-known", "Threshold"
DELTA = 0.05
"""Default probability that a threshold breaks its guarantee: 5 %, the usual level of 95 % confidence. Twice
the value accepts more inputs, with 90 % confidence."""
RISK = re.compile(r"\s*risk\s*<=\s*(\S+)\s*")


def parse_risk(text: str) -> float:
    """Parse `risk<=R`, the maximum error rate of `--threshold-for`.

    Raises:
        UsageError: If the text has another form, or R is not in (0, 1).
    """
    match = RISK.fullmatch(text)
    if match is None:
        raise UsageError(
            f"`{THRESHOLD_OPTION} {text}`: expected `risk<=R` with R the largest allowed fraction of errors",
            hint=f"for example `{THRESHOLD_OPTION} 'risk<=0.01'`; quote it, because the shell interprets `<`",
        )
    risk = number(THRESHOLD_OPTION, match[1])
    if not 0 < risk < 1:
        raise UsageError(
            f"`{THRESHOLD_OPTION} {text}`: the fraction must be between 0 and 1",
            hint=f"write 1 % as 0.01: `{THRESHOLD_OPTION} 'risk<={risk / 100:g}'`"
            if 1 <= risk < 100
            else None,
        )
    return risk


THRESHOLD_FOR = Setting(
    "Find a threshold of the OOD score with at most the fraction R of errors below, on held-out `--data`, or exit with 5.",
    parse=parse_risk,
    metavar="'risk<=R'",
    panel=PANEL,
)
KEEP_KNOWN = Setting(
    "Hold back inputs with a high OOD score, but keep at least this share of known inputs. With `--threshold-for`, "
    "one half of `--data` is used for each test.",
    above=0.0,
    below=1.0,
    shows_range=False,
    range_hint="write 95 % as 0.95",
    metavar="SHARE",
    panel=PANEL,
)
LABEL_THRESHOLDS = Setting(
    "Choose for each label the probability above which it is predicted, by F1 on held-out `--data`; for models with several labels.",
    panel=PANEL,
)
GUARANTEE = Setting(
    f"What R bounds: errors among accepted inputs, with probability 1 - D; or inputs that are accepted and wrong, among all inputs, on "
    f"average (default: {Guarantee.ERRORS_AMONG_ACCEPTED}).",
    choices=tuple(Guarantee),
    panel=PANEL,
    shows_default=False,
    only_with="threshold_for",
)
CHANCE = Setting(
    f"Probability that the threshold breaks the guarantee (default: {DELTA:g}).",
    above=0.0,
    below=1.0,
    shows_range=False,
    metavar="D",
    panel=PANEL,
    only_with=(
        "threshold_for",
        Constraint("has_confidence", option="guarantee", why="that guarantee holds on average"),
    ),
)
SAVE_MODEL = Setting(
    "Write a copy of MODEL with its thresholds, sets, `--temperature` and fitted OOD scores, which `predict` applies.",
    parse=output,
    check_path=WEIGHTS,
    metavar="PATH",
    panel=PANEL,
    shows_default=False,
    role=Role.OUTPUT,
)


def risk_text(risk: float | None) -> str | None:
    """Return the text of a risk on the command line, `risk<=0.01`; None for None."""
    return None if risk is None else f"risk<={risk:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of `--fail-if`: a metric of the first row, an operator and a bound.

    Attributes:
        metric: A name in `METRICS`.
        score: OOD score of a ranking metric. `None` for the first score.
        scope: `None` for the ID set and costs. For OOD metrics `near`, `far`, `all` or the name of a data
            set; for metrics of labelled data the scope of a plugin.
        comparison: A key of `OPERATORS`.
        bound: In the metric's unit; fractions are in [0, 1].
    """

    metric: str
    scope: str | None
    comparison: str
    bound: float
    score: str | None = None

    def __post_init__(self) -> None:
        metric = metric_named(self.metric)
        if not metric.low <= self.bound <= metric.high or not math.isfinite(self.bound):
            # All other values give the same result as `metric.low`, since the bound is out of range.
            always = OPERATORS[self.comparison](metric.low, self.bound)
            raise UsageError(
                f"`{self}`: {self.metric} is between {metric.low:g} and {metric.high:g}, so this "
                f"condition {'always' if always else 'never'} holds",
                hint="write 95 % as 0.95 or 95%" if 1 < self.bound <= 100 else None,
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `METRIC[@SCORE][SCOPE] OPERATOR NUMBER`, with the scope in brackets.

        The bound of a fraction may be in percent, such as `95%`.

        Raises:
            UsageError: If the text does not follow the grammar, or the metric is unknown.
        """
        match = GRAMMAR.fullmatch(text)
        if match is None:
            raise UsageError(
                f"`--fail-if {text}`: expected METRIC, an operator of {' '.join(OPERATORS)}, and a number",
                hint=EXAMPLES,
            )
        metric, typed_bound = metric_named(match["metric"]), match["bound"]
        percent = typed_bound.endswith("%")
        if percent and metric.unit is not Unit.SHARE:
            raise UsageError(f"`--fail-if {text}`: {metric.name} is not a fraction", hint="leave out the `%`")
        try:
            bound = float(f"{typed_bound[:-1]}e-2" if percent else typed_bound)
        except ValueError as error:
            raise UsageError(f"`--fail-if {text}`: `{typed_bound}` is not a number", hint=EXAMPLES) from error
        return cls(
            metric=metric.name,
            scope=match["scope"],
            comparison=match["operator"],
            bound=bound,
            score=match["score"],
        )

    def __str__(self) -> str:
        scope = "" if self.scope is None else f"[{self.scope}]"
        score = "" if self.score is None else f"@{self.score}"
        return f"{self.metric}{score}{scope}{self.comparison}{self.bound:.12g}"

    def check_measured(
        self,
        metrics: Sequence[str],
        scopes: Sequence[str],
        scores: Sequence[str] = (MSP,),
        *,
        under: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        """Raise if the condition needs a number that this run does not measure. Called before measuring.

        Args:
            metrics: Names of the metrics to measure.
            scopes: Names of the OOD sets, and of the groups `near`, `far` and `all`.
            scores: Names of the OOD scores.
            under: Scopes in which a plugin measures labelled data, for example `fog:3`.
            hint: Hint for a scope of labelled data that is not in `under`.

        Raises:
            UsageError: The hint has a valid condition.
        """
        needs = METRICS[self.metric].needs
        if self.metric not in metrics:
            why = (
                "is not among the selected metrics"
                if needs not in (MetricNeeds.OOD, MetricNeeds.TIME)
                else "needs an OOD data set"
                if needs is MetricNeeds.OOD and not scopes
                else "is not measured"
            )
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} {why}", hint="see `--metrics`, `--near`, `--far`"
            )
        if self.scope is None:
            if needs is MetricNeeds.OOD:
                raise UsageError(
                    f"`--fail-if {self}`: {self.metric} needs the name of an OOD data set",
                    hint=f"write `{self.metric}[{scopes[-1]}]`; available: {', '.join(scopes)}",
                )
        elif needs is MetricNeeds.LABELS and (self.scope in under or self.scope not in scopes):
            if self.scope not in under:
                raise UsageError(
                    f"`--fail-if {self}`: {self.metric} is not measured under `{self.scope}`",
                    hint=hint or f"write `{self.metric}{self.comparison}{self.bound:.12g}`",
                )
        elif needs not in (MetricNeeds.OOD, MetricNeeds.MEMBERS):
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} is not measured on OOD data",
                hint=f"write `{self.metric}{self.comparison}{self.bound:.12g}`",
            )
        elif self.scope not in scopes:
            raise UsageError(
                f"`--fail-if {self}`: there is no OOD data set or group `{self.scope}`",
                hint=did_you_mean(self.scope, scopes)
                or (f"there are {', '.join(scopes)}" if scopes else "add `--near NAME=DATA`"),
            )
        if self.score is not None:
            self._check_score(self.score, scores)

    def _check_score(self, score: str, scores: Sequence[str]) -> None:
        if METRICS[self.metric].needs not in BY_SCORE:
            raise UsageError(
                f"`--fail-if {self}`: {self.metric} does not depend on an OOD score",
                hint=f"leave out `@{score}`",
            )
        if score not in scores:
            close = None if kind_of(score) in EVERY else did_you_mean(score, EVERY)
            raise UsageError(
                f"`--fail-if {self}`: the OOD score `{score}` is not measured",
                hint=close or f"add `--ood-score {','.join((*scores, score))}`",
            )

    def check(self, row: Row, scores: Sequence[str] = (MSP,)) -> Check:
        """Return the result of the condition for a row measured with these OOD scores.

        Raises:
            DataError: If the row does not have the number.
        """
        from hydractl.manifest.report import Check  # noqa: PLC0415 - `--help` loads no pydantic

        name = self.metric if self.score is None else number_name(self.metric, self.score, scores)
        measured = self._measured(row, name)
        failed = OPERATORS[self.comparison](measured, self.bound)
        return Check(condition=str(self), failed=failed, found=measured)

    def _measured(self, row: Row, name: str) -> float:
        """Return the row's number for the condition.

        Raises:
            DataError: If the row does not have the number.
        """
        numbers: Mapping[str, float | Value]
        if self.scope is None:
            numbers = row.values
        elif METRICS[self.metric].needs is MetricNeeds.LABELS and (changed := row.under(self.scope)):
            numbers = changed
        else:
            numbers = row.means.get(self.scope) or row.ood.get(self.scope, {})
        if (measured := numbers.get(name)) is None:
            raise DataError(
                f"`--fail-if {self}`: {row.name} has no {self.metric} on these data",
                hint="measure it on other data, or leave out the condition",
            )
        return measured if isinstance(measured, float) else measured.value


class EvalExtension(Extension):
    """Options that a plugin adds to `eval`."""

    __slots__ = ()

    @property
    def scopes(self) -> Sequence[str]:
        """Names of the plugin's possible scopes of labelled data, before models are known."""
        return ()

    def scope_hint(self, scope: str | None, measured: Sequence[str]) -> str | None:
        """Return a hint for a condition with a scope that this plugin does not measure, or None.

        Args:
            scope: Scope of the condition, for example `fog:3`; None without a scope.
            measured: Scopes in which plugins measure labelled data.

        Returns:
            The hint; always None in this base class.
        """
        del scope, measured
        return None

    def further_inputs(self, config: Any) -> Sequence[InputRef]:  # noqa: ANN401 - `EvalConfig`, which imports this module
        """Return inputs in options of the plugin whose values are collections; empty in this base class."""
        del config
        return ()

    def begin(self, config: Any, model_files: Sequence[Sequence[OpenModel]]) -> Any:  # noqa: ANN401 - as above; the `RowMeasurer` of `rows`, which imports this module
        """Check the opened models of each row and read files. Called before data are opened.

        Returns:
            The plugin's measurements in this run, a `rows.RowMeasurer`; `None` without measurements.
        """
        del config, model_files
        return None
