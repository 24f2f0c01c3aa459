"""Sections of a report's page below the verdict, for HTML, Markdown and the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hydractl.manifest.guarantees import ByClass, Example
from hydractl.manifest.report import Report, Row, column_heads
from hydractl.manifest.terms import ID_NAME
from hydractl.messages import abridged, counted
from hydractl.metrics.metric_spec import ON_ID_DATA, MetricNeeds
from hydractl.plugins import functions_after
from hydractl.reporting.comparison import Compared, Runtimes
from hydractl.reporting.lineage import Node, lineage, plain, short
from hydractl.reporting.report_values import (
    GROUPS,
    SETS,
    WORSE,
    Cell,
    Quantity,
    ReportTable,
    cell_of,
    difference_cell,
    number_of,
    scopes,
)
from hydractl.reporting.verdict import JUDGED_METRICS

SHOWN_CLASSES, SHOWN_CONFUSIONS = 20, 10
"""Maximum numbers of classes and confusions on a page; the report has more. Chosen by hand; twice the numbers
double the length of these tables."""


def class_tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield a table of accuracy by class, sorted by the first row's accuracy, and the first row's confusions.

    The samples of several reports are pooled.
    """
    rows = {
        name: answers
        for name in compared.names
        if len(answers := _by_class(compared, name)) == len(compared.reports)
    }
    first = compared.names[0]
    if first not in rows:
        return
    pooled = {name: _accuracies(answers) for name, answers in rows.items()}
    order = [key for key in pooled[first] if all(key in accuracies for accuracies in pooled.values())]
    order.sort(key=lambda key: pooled[first][key][0] / pooled[first][key][1])
    names, total = Counter(name for _, name in order), rows[first][0].total
    range_text = f", {SHOWN_CLASSES} of {total} classes" if total > SHOWN_CLASSES else ""
    if order:
        yield ReportTable(
            title=f"Accuracy ↑ by class, lowest of {first} first{range_text}",
            of="class",
            heads=("samples", *pooled),
            rows=tuple(
                (
                    name if names[name] == 1 else f"{name} ({index})",
                    (
                        Cell(str(pooled[first][index, name][1])),
                        *(
                            Cell(f"{hits / count:.3f}")
                            for hits, count in (a[index, name] for a in pooled.values())
                        ),
                    ),
                )
                for index, name in order[:SHOWN_CLASSES]
            ),
        )
    confusions = Counter[tuple[str, str]]()
    for by_class in rows[first]:
        for confusion in by_class.confusions:
            confusions[confusion.label, confusion.answer] += confusion.count
    if confusions:
        yield ReportTable(
            title=f"Largest confusions of {first}",
            of="label",
            heads=("answer", "samples"),
            rows=tuple(
                (label, (Cell(answer), Cell(str(count))))
                for (label, answer), count in confusions.most_common(SHOWN_CONFUSIONS)
            ),
        )


def _by_class(compared: Compared, name: str) -> list[ByClass]:
    rows = (row for report in compared.reports for row in report.rows if row.name == name)
    return [row.by_class for row in rows if row.by_class is not None]


def _accuracies(reports: Sequence[ByClass]) -> dict[tuple[int, str], tuple[int, int]]:
    """Return (correct, total) samples of each class present in all reports, summed over reports."""
    by_report = [{(c.index, c.name): (c.hits, c.count) for c in report.classes} for report in reports]
    shared = [key for key in by_report[0] if all(key in classes for classes in by_report)]
    return {
        key: (sum(classes[key][0] for classes in by_report), sum(classes[key][1] for classes in by_report))
        for key in shared
    }


def example_tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield tables of the examples in each report: largest disagreements, and most confident mistakes."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        if report.examples is None:
            continue
        place = f"{file}: " if len(compared.files) > 1 else ""
        first = report.rows[0].name
        kinds = {
            f"largest disagreements of the members of {first}": report.examples.disagreements,
            f"most confident mistakes of {first}": report.examples.mistakes,
        }
        for kind, examples in kinds.items():
            if examples:
                yield _example_table(f"{place}{counted(len(examples), 'input')}: {kind}", examples)


def answer_table(compared: Compared) -> ReportTable | None:
    """Return a table of example answers of the tests or the first report, or None without such examples."""
    report = (compared.tests or compared.reports)[0]
    if report.examples is None or not report.examples.answers:
        return None
    spread = f"inputs at equal distances in {report.data[ID_NAME].reference}"
    held_back = " and the first wrong answer that is held back" * any(
        example.accepted is False and example.answer != example.label for example in report.examples.answers
    )
    return _example_table(f"Answers of {report.rows[0].name}: {spread}{held_back}", report.examples.answers)


def _example_table(title: str, examples: Sequence[Example]) -> ReportTable:
    has_members, decides = (getattr(examples[0], name) is not None for name in ("disagreement", "accepted"))
    return ReportTable(
        title=title,
        of="input",
        heads=(
            *("label", "answer", *["decision"] * decides, "confidence"),
            *(("disagreement", "members") if has_members else ()),
        ),
        rows=tuple(
            (
                example.name if example.text is None else example.text,
                (
                    Cell(example.label),
                    Cell(example.answer, word="" if example.answer == example.label else WORSE),
                    *([Cell("accepted" if example.accepted else "held back")] if decides else ()),
                    Cell(f"{example.confidence:.3f}"),
                    *(
                        (Cell(f"{example.disagreement:.3f}"), Cell(", ".join(example.votes)))
                        if example.disagreement is not None
                        else ()
                    ),
                ),
            )
            for example in examples
        ),
        pictures=tuple(example.picture or "" for example in examples),
    )


FEW = 2
"""Maximum number of other rows named in a title; more rows are counted. Chosen by hand; twice the number
doubles the longest titles."""
COSTS = (MetricNeeds.WEIGHTS, MetricNeeds.TIME)


def title(compared: Compared) -> str:
    """Return the title of a page: names of the rows, and the number of reports."""
    first, *others = compared.names
    against = f"{len(others)} others" if len(others) > FEW else " and ".join(others)
    several = counted(len(compared.reports), "data set" if compared.over == SETS else "report")
    reports = f", {several}" if len(compared.reports) > 1 else ""
    return f"{first}{f' against {against}' if others else ''}{reports}"


class Section(NamedTuple):
    """A part of a page below a heading.

    Attributes:
        name: Name of the section, for the placement of plugins' sections.
        title: Heading.
        tables: Tables; collapsed for single OOD sets.
        figures: Names of figures, shown if drawn.
    """

    name: str
    title: str
    tables: tuple[ReportTable, ...] = ()
    figures: tuple[str, ...] = ()


def sections(compared: Compared) -> Iterator[Section]:
    """Yield the core's sections. Sections of plugins follow the core section that they name."""
    for section in _own_sections(compared):
        yield section
        for added in functions_after("sections", section.name):
            yield added(compared)


def _own_sections(compared: Compared) -> Iterator[Section]:
    """Yield the core's sections, the most important first. A section may be empty."""
    report, scores = compared.reports[0], compared.reports[0].ood_scores
    tested = _of(compared, None, *ON_ID_DATA)
    yield Section(
        "calibration",
        "Accuracy and calibration",
        (
            *_numbers(compared, "In-distribution data", tested),
            *(_each_set(compared) if compared.over == SETS and len(compared.reports) > 1 else ()),
            *_columns(compared),
        ),
        ("reliability",),
    )
    yield Section(
        "ood",
        "Out-of-distribution data",
        tuple(
            table
            for scope in scopes(report)
            if scope != "all" or not (report.near and report.far)
            for score in scores
            for table in _numbers(
                compared,
                f"{_scope_title(report, scope)}{f', by {score}' if len(scores) > 1 else ''}",
                [q for q in _of(compared, scope, MetricNeeds.OOD) if q.by(scores) == score],
                folded=scope not in GROUPS and len(scopes(report)) > 1,
            )
        ),
        ("roc",),
    )
    yield Section("classes", "Classes", tuple(class_tables(compared)))
    yield Section("examples", "Examples", tuple(example_tables(compared)))
    yield Section(
        "costs",
        "Costs",
        (*_numbers(compared, "Costs", _of(compared, None, *COSTS)), *_times(compared)),
        ("cost", "runtime"),
    )
    yield Section("diversity", "Members", tuple(_diversity(compared)), ("heads",))


def _columns(compared: Compared) -> Iterator[ReportTable]:
    """Yield for each report a table of the `Row` fields marked with `Column`, if any row has a value."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        place = f"{file}: " if len(compared.reports) > 1 else ""
        if heads := column_heads(report.rows):
            yield ReportTable(
                title=f"{place}Values of each model",
                heads=heads,
                rows=tuple(
                    (row.name, tuple(Cell(abridged(row.columns.get(head, ""))) for head in heads))
                    for row in report.rows
                ),
            )


def tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield the tables of all sections."""
    for section in sections(compared):
        yield from section.tables


def _scope_title(report: Report, scope: str) -> str:
    """Return the title of a table of OOD data."""
    if scope in GROUPS:
        return "Mean over all OOD sets" if scope == "all" else f"Mean over {scope} OOD sets"
    data, kind = report.data[scope], "near" if scope in report.near else "far"
    number = "" if data.count is None else f", {counted(data.count, 'sample')}"
    return f"{scope} ({kind} OOD: {data.reference}{number})"


def _numbers(
    compared: Compared, title: str, quantities: Sequence[Quantity], *, folded: bool = False
) -> Iterator[ReportTable]:
    """Yield a table of all rows, with the first row's differences to other rows; no table without quantities."""
    if not quantities:
        return
    first = compared.names[0]
    rows = [
        (row, tuple(cell_of(q.metric, numbers.get(q)) for q in quantities))
        for row, numbers in compared.rows.items()
    ]
    directed = {
        q for q in quantities if q.metric.higher_is_better is not None and q.metric.needs not in COSTS
    }
    rows += [
        (
            f"{first} − {row}",
            tuple(
                difference_cell(q.metric, numbers.get(q), compared.smallest) if q in directed else Cell()
                for q in quantities
            ),
        )
        for row, numbers in compared.differences.items()
        if directed & numbers.keys()
    ]
    yield ReportTable(title=title, folded=folded, heads=tuple(q.head for q in quantities), rows=tuple(rows))


def _times(compared: Compared) -> Iterator[ReportTable]:
    if (times := Runtimes.of(compared)) is not None:
        yield ReportTable(
            title=f"Time for {counted(times.samples, 'ID sample')} in batches of {times.batch_size}",
            heads=("seconds ↓", f"× {times.fastest}"),
            rows=tuple(
                (row, (Cell(f"{seconds:.3g}"), Cell(f"{times.ratio(row):.2f}")))
                for row, seconds in times.seconds.items()
            ),
        )


def _diversity(compared: Compared) -> Iterator[ReportTable]:
    """Yield a table of the members' diversity, if a row has several members.

    Columns are on the ID set and on the largest group of OOD sets.
    """
    if all(row.members == 1 for report in compared.reports for row in report.rows):
        return
    widest = scopes(compared.reports[0])[:1]
    quantities = [q for scope in (None, *widest) for q in _of(compared, scope, MetricNeeds.MEMBERS)]
    members = {row.name: row.members for row in compared.reports[0].rows}
    if quantities:
        yield ReportTable(
            title="Diversity of the members",
            heads=("members", *(f"{q.heading} {'ID' if q.scope is None else 'OOD'}" for q in quantities)),
            rows=tuple(
                (row, (Cell(str(members[row])), *(cell_of(q.metric, numbers.get(q)) for q in quantities)))
                for row, numbers in compared.rows.items()
            ),
        )


def _each_set(compared: Compared) -> Iterator[ReportTable]:
    """Yield for each metric a table with the number on each data set, and the mean (paper, Table 24)."""
    for q in _of(compared, None, *ON_ID_DATA):
        by_report = [{row.name: number_of(row, q) for row in report.rows} for report in compared.reports]
        yield ReportTable(
            title=f"{q.head} on each data set",
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


def checks(compared: Compared) -> Iterator[tuple[bool, str]]:
    """Yield (failed, text) for each condition of `eval --fail-if`."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        place = f"{file}: " if len(compared.reports) > 1 else ""
        for check in report.checks:
            yield (
                check.failed,
                f"{place}{'failed' if check.failed else 'ok'}: {check.condition}, found {check.found:.6g}",
            )


def facts(compared: Compared) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of models, data, options and versions."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        yield file, "; ".join(f"{row.name}: {', '.join(_models(row))}" for row in report.rows)
    report = compared.reports[0]
    for name, data in report.data.items():
        number = "" if data.count is None else f", {counted(data.count, 'sample')}"
        yield f"data: {name}", f"{data.reference}{number}, {short(data.sha256)}"
    yield from ((name, plain(value)) for name, value in report.options.items() if value is not None)
    yield "versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _models(row: Row) -> Iterator[str]:
    """Yield a description of each model of a row."""
    none = [None] * len(row.models)
    for model, derived, stored in zip(
        row.models, row.derivations or none, row.stored_scores or none, strict=True
    ):
        made_text = "" if derived is None else f", {derived}"
        scores_text = "" if stored is None else f", OOD scores stored, of {stored.data.reference}"
        yield f"{model.reference} {short(model.sha256)}{made_text}{scores_text}"


def lineages(compared: Compared) -> Sequence[Node]:
    """Return the lineage tree of each model whose report has a lineage."""
    several = len(compared.files) > 1
    return [
        lineage(": ".join((*[file] * several, row.name, origin.name)), origin.made_by)
        for file, report in zip(compared.files, compared.reports, strict=True)
        for row in report.rows
        for origin in row.origins
    ]
