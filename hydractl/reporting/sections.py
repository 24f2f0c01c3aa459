"""What pages of a report say, however they are laid out: whether the first row is better than the others, and where it is not; tables; facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydractl.manifest.report import Row
from hydractl.manifest.shift_groups import SHIFT
from hydractl.messages import counted, listed
from hydractl.metrics.classification import CALIBRATED
from hydractl.metrics.metric_spec import Metric, MetricNeeds
from hydractl.reporting.analyses.tables import analysis_tables
from hydractl.reporting.comparison import Compared, Runtimes
from hydractl.reporting.intervals import SETS
from hydractl.reporting.lineage import Node, lineage, pairs, plain, short
from hydractl.reporting.report_values import (
    GROUPS,
    Cell,
    Number,
    Quantity,
    ReportTable,
    cell_of,
    number_of,
    number_text,
    scopes,
)
from hydractl.reporting.shift import shift_tables

FEW = 2
JUDGED_METRICS = ("accuracy", "nll", "ece", "auroc")
"""What sentences speak of; tables have the rest."""
MOST_SETS = 3
"""More OOD sets are spoken of by their mean."""
COST_WORDS = {"macs": "multiply-accumulates", "parameters": "parameters"}
COSTS = (MetricNeeds.WEIGHTS, MetricNeeds.TIME)


def title(compared: Compared) -> str:
    """Return what a report is of."""
    first, *others = compared.names
    against = f"{len(others)} others" if len(others) > FEW else " and ".join(others)
    several = counted(len(compared.reports), "data set" if compared.over == SETS else "report")
    reports = f", {several}" if len(compared.reports) > 1 else ""
    return f"{first}{f' against {against}' if others else ''}{reports}"


def verdict(compared: Compared) -> tuple[str, ...]:
    """Return one sentence for each row that the first one is compared with, or what it measures where there is none; and thresholds."""
    thresholds = tuple(
        f"{row.name}: {row.threshold.summary}."
        for report in compared.reports
        for row in report.rows
        if row.threshold is not None
    )
    first = compared.names[0]
    if not compared.differences:
        numbers_of = compared.rows[first]
        numbers = ", ".join(
            f"{q.label} {number_text(q.metric, numbers_of[q])}"
            for q in judged_quantities(compared)
            if q in numbers_of
        )
        no_comparison = "nothing stands beside it, so this does not say whether it is better than anything"
        return (f"{first}: {numbers or 'nothing to judge it by'}; {no_comparison}.", *thresholds)
    return (*(_sentence(compared, row) for row in compared.differences), *thresholds)


def judged_quantities(compared: Compared) -> list[Quantity]:
    """Return what sentences speak of, as far as it was measured."""
    sets = {q.scope for q in compared.quantities if q.metric.needs is MetricNeeds.OOD} - {*GROUPS}
    hidden = sets if len(sets) > MOST_SETS else {*GROUPS}
    candidates = [
        q for q in compared.quantities if q.scope not in hidden and (not q.under_shift or q.scope == SHIFT)
    ]
    return [q for name in JUDGED_METRICS for q in candidates if q.name == name]


def _sentence(compared: Compared, row: str) -> str:
    first, differences = compared.names[0], compared.differences[row]
    unfair = () if compared.scaled_alike(row) else CALIBRATED
    quantities = [q for q in judged_quantities(compared) if q in differences]
    judgements = [_judgement(q, differences[q]) for q in quantities if q.name not in unfair]
    better, worse, level, unsure = (
        listed([text for judgement, text in judgements if judgement == name])
        for name in ("better", "worse", "level", "unsure")
    )
    parts = []
    if better:
        parts.append(f"is better than {row} in {better}")
    if worse:
        parts.append(f"is worse {'' if better else f'than {row} '}in {worse}")
    if level:
        parts.append(
            f"is not told apart from {'it' if parts else row} in {level}, where the interval of the difference includes 0"
        )
    if unsure:
        parts.append(f"differs {'' if parts else f'from {row} '}by {unsure}, without an interval")
    if not parts:
        parts.append(f"has no number of {', '.join(JUDGED_METRICS)} to compare with {row}")
    parts += _costs(compared.rows[first], compared.rows[row], row)
    withheld = [q.label for q in quantities if q.name in unfair]
    if withheld:
        parts[-1] += (
            f"; {listed(withheld)} {'are' if len(withheld) > 1 else 'is'} not compared, as only one of the two stores a temperature "
            "(`hydractl eval --temperature DATA` fits one for every row)"
        )
    return f"{first} {'; it '.join(parts)}."


def _judgement(quantity: Quantity, difference: Number) -> tuple[str, str]:
    """Return whether the first row is better by a quantity, and by how much, with the sign that it then has."""
    lead = replace(difference, deviation=None)  # which is in the tables
    gain = lead if quantity.metric.higher_is_better else negated(lead)
    if gain.interval is None:
        return "unsure", f"{number_text(quantity.metric, lead)} in {quantity.label}"
    if gain.interval[0] > 0:
        return "better", f"{quantity.label} by {number_text(quantity.metric, gain)}"
    if gain.interval[1] < 0:
        return "worse", f"{quantity.label} by {number_text(quantity.metric, negated(gain))}"
    return "level", f"{quantity.label} ({number_text(quantity.metric, lead)})"


def negated(number: Number) -> Number:
    """Return a number with the other sign."""
    low, high = (None if end is None else 0.0 - end for end in (number.high, number.low))
    return replace(number, value=0.0 - number.value, low=low, high=high)


def _costs(numbers: Mapping[Quantity, Number], others: Mapping[Quantity, Number], name: str) -> Iterator[str]:
    ratios = [
        f"{numbers[q].value / others[q].value:.3g} times the {word}"
        for q, word in ((Quantity(metric), word) for metric, word in COST_WORDS.items())
        if q in numbers and q in others and others[q].value
    ]
    if ratios:
        yield f"takes {listed(ratios)} of {name}"


def tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield all numbers, and how far the first row is from each other one; then those of each data set, if means are over sets."""
    first = compared.names[0]
    for name, quantities in _groups(compared):
        scope = quantities[0].scope
        folded = scope is not None and scope not in GROUPS and len(scopes(compared.reports[0])) > 1
        yield ReportTable(
            title=name,
            folded=folded,
            heads=tuple(q.heading for q in quantities),
            rows=tuple(
                (row, tuple(cell_of(q.metric, numbers.get(q)) for q in quantities))
                for row, numbers in compared.rows.items()
            ),
        )
        directed = [
            q for q in quantities if q.metric.higher_is_better is not None and q.metric.needs not in COSTS
        ]
        if compared.differences and directed:
            yield ReportTable(
                title=f"{name}: {first} less each other row",
                folded=folded,
                heads=tuple(q.heading for q in directed),
                rows=tuple(
                    (row, tuple(_lead(q.metric, numbers.get(q)) for q in directed))
                    for row, numbers in compared.differences.items()
                ),
            )
    yield from shift_tables(compared.quantities, compared.rows, compared.differences)
    if (times := Runtimes.of(compared)) is not None:
        yield ReportTable(
            title=f"Time for {counted(times.samples, 'ID sample')} in batches of {times.batch_size}",
            folded=False,
            heads=("seconds", "times the least"),
            rows=tuple(
                (row, (Cell(f"{seconds:.3g}"), Cell(f"{times.ratio(row):.2f}")))
                for row, seconds in times.seconds.items()
            ),
        )
    for file, report in zip(compared.files, compared.reports, strict=True):
        where = f"{file}: " if len(compared.reports) > 1 else ""
        yield from (replace(table, title=where + table.title) for table in analysis_tables(report))

    if compared.over == SETS and len(compared.reports) > 1:
        yield from _of_sets(compared)


def _of_sets(compared: Compared) -> Iterator[ReportTable]:
    """Yield for each metric its number on each set, and their mean (paper Table 24)."""
    for q in _of(compared, None, MetricNeeds.TEMPERATURE, MetricNeeds.LABELS, *_members(compared)):
        by_report = [{row.name: number_of(row, q) for row in report.rows} for report in compared.reports]
        yield ReportTable(
            title=f"{q.heading} on each data set",
            folded=q.name not in JUDGED_METRICS,
            heads=(*(Path(file).stem for file in compared.files), "mean"),
            rows=tuple(
                (
                    name,
                    tuple(
                        cell_of(q.metric, number)
                        for number in (*(e[name] for e in by_report), numbers.get(q))
                    ),
                )
                for name, numbers in compared.rows.items()
            ),
        )


def _of(compared: Compared, scope: str | None, *needs: MetricNeeds) -> list[Quantity]:
    return [q for q in compared.quantities if q.scope == scope and q.metric.needs in needs]


def _members(compared: Compared) -> tuple[MetricNeeds, ...]:
    """Return what is shown where there are members."""
    several = any(row.members > 1 for report in compared.reports for row in report.rows)
    return (MetricNeeds.MEMBERS,) if several else ()


def _groups(compared: Compared) -> Iterator[tuple[str, list[Quantity]]]:
    """Yield what stands in a table together, and what that is called."""
    members, report = _members(compared), compared.reports[0]
    kinds = dict.fromkeys(report.near, "near") | dict.fromkeys(report.far, "far")
    groups = [
        ("In-distribution data", _of(compared, None, MetricNeeds.TEMPERATURE, MetricNeeds.LABELS, *members)),
        ("Costs", _of(compared, None, *COSTS)),
    ]
    for scope in scopes(report):
        of = f"mean over {scope} sets" if scope in GROUPS else f"{scope} ({kinds[scope]})"
        groups.append((f"OOD data: {of}", _of(compared, scope, MetricNeeds.OOD, *members)))
    yield from ((name, quantities) for name, quantities in groups if quantities)


def _lead(metric: Metric, number: Number | None) -> Cell:
    """Return a difference, and whether the first row is better by it."""
    if number is None:
        return Cell()
    gain = number if metric.higher_is_better else negated(number)
    word = ""
    if gain.interval is not None:
        word = "better" if gain.interval[0] > 0 else "worse" if gain.interval[1] < 0 else "includes 0"
    value, ends = cell_of(metric, number)
    return Cell("+" * (number.value > 0) + value, f"{ends} {word}".strip())


def checks(compared: Compared) -> Iterator[tuple[bool, str]]:
    """Yield whether each condition of `eval --fail-if` failed, and what is said of it."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        where = f"{file}: " if len(compared.reports) > 1 else ""
        for check in report.checks:
            yield (
                check.failed,
                f"{where}{'failed' if check.failed else 'ok'}: {check.condition}, found {check.found:.6g}",
            )


def facts(compared: Compared) -> Iterator[tuple[str, str]]:
    """Yield what was measured, and how."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        yield file, "; ".join(f"{row.name}: {', '.join(_models(row))}" for row in report.rows)
    report = compared.reports[0]
    for name, data in report.data.items():
        number = "" if data.count is None else f", {counted(data.count, 'sample')}"
        yield f"data: {name}", f"{data.reference}{number}, {short(data.sha256)}"
    yield from ((name, plain(value)) for name, value in report.options.items() if value is not None)
    yield "versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _models(row: Row) -> Iterator[str]:
    """Yield what answers in a row."""
    none = [None] * len(row.models)
    for model, derived, stored in zip(
        row.models, row.derived or none, row.stored_scores or none, strict=True
    ):
        made_text = "" if derived is None else f", {derived.kind} {pairs(derived.options)}".rstrip()
        scores_text = "" if stored is None else f", OOD scores stored, of {stored.data.reference}"
        yield f"{model.reference} {short(model.sha256)}{made_text}{scores_text}"


def lineages(compared: Compared) -> Sequence[Node]:
    """Return the tree of each model that a report has the lineage of."""
    several = len(compared.files) > 1
    return [
        lineage(": ".join((*[file] * several, row.name, origin.name)), origin.made_by)
        for file, report in zip(compared.files, compared.reports, strict=True)
        for row in report.rows
        for origin in row.origins
    ]
