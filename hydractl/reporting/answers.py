"""Tables of accuracy by class, of the largest confusions, and of examples. Importing this module does not load torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hydractl.manifest.answers import ByClass, Example
from hydractl.messages import counted
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import Cell, ReportTable

SHOWN_CLASSES, SHOWN_CONFUSIONS = 20, 10


def class_tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield a table of accuracy by class, sorted by the first row's, and one of the first row's confusions. Samples of several reports are pooled."""
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
    some = (
        f", the {SHOWN_CLASSES} of {total} with the lowest accuracy of {first}"
        if total > SHOWN_CLASSES
        else ""
    )
    if order:
        yield ReportTable(
            title=f"Accuracy ↑ by class{some}",
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
    """Return the correct and all samples of each class that all reports have, summed over reports."""
    by_report = [{(c.index, c.name): (c.hits, c.count) for c in report.classes} for report in reports]
    shared = [key for key in by_report[0] if all(key in classes for classes in by_report)]
    return {
        key: (sum(classes[key][0] for classes in by_report), sum(classes[key][1] for classes in by_report))
        for key in shared
    }


def example_tables(compared: Compared) -> Iterator[ReportTable]:
    """Yield tables of the examples in each report: largest disagreements of the members, and most confident mistakes."""
    for file, report in zip(compared.files, compared.reports, strict=True):
        if report.examples is None:
            continue
        where = f"{file}: " if len(compared.files) > 1 else ""
        first = report.rows[0].name
        kinds = {
            f"largest disagreements of the members of {first}": report.examples.disagreements,
            f"most confident mistakes of {first}": report.examples.mistakes,
        }
        for kind, examples in kinds.items():
            if examples:
                yield _example_table(f"{where}{counted(len(examples), 'input')}: {kind}", examples)


def _example_table(title: str, examples: Sequence[Example]) -> ReportTable:
    has_members = examples[0].disagreement is not None
    return ReportTable(
        title=title,
        of="input",
        heads=("label", "answer", "confidence", *(("disagreement", "members") if has_members else ())),
        rows=tuple(
            (
                example.name if example.text is None else example.text,
                (
                    Cell(example.label),
                    Cell(example.answer),
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
