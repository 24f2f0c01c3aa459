"""Comparison of the first row of reports with the other rows: a table, and one sentence.

Importing this module does not load torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from hydractl.manifest.report import Report
from hydractl.messages import counted, listed
from hydractl.metrics.classification import CALIBRATED
from hydractl.metrics.metric_spec import ARROWS, MetricNeeds
from hydractl.plugins import added
from hydractl.reporting.comparison import Compared
from hydractl.reporting.report_values import (
    BETTER,
    LEVEL,
    WORSE,
    Cell,
    Quantity,
    ReportTable,
    cell_of,
    difference_cell,
    scopes,
)

JUDGED_METRICS = ("accuracy", "f1_micro", "span_f1", "ndcg", "nll", "ece", "auroc")
"""Metrics of the verdict."""
MOST_SCORES = 2
"""Number of OOD scores in the verdict. The first scores of a report include, by default, the score stored in
models. Chosen by hand; twice the number doubles the OOD lines of the table and gives four chances of a
favourable score."""
COST_LABELS = {"macs": "multiply-accumulates", "parameters": "parameters"}
MOST_WORDS = 30
"""Maximum number of words of the verdict sentence. Chosen by hand for a sentence of two lines; with twice the
limit, more comparisons are listed by name instead of counted."""
UNCLEAR, WITHHELD = "no interval", "not compared"
WORDS = (BETTER, WORSE, LEVEL, UNCLEAR, WITHHELD)


def verdict_table(compared: Compared) -> ReportTable:
    """Return a table of measures: the value of the first row, and its comparison with each other row."""
    first, numbers = compared.names[0], compared.rows[compared.names[0]]
    rows = [
        (
            f"{q.label}{ARROWS[q.metric.higher_is_better]}",
            (
                cell_of(q.metric, numbers.get(q)),
                *(_difference_cell(compared, row, q) for row in compared.differences),
            ),
        )
        for q in judged_quantities(compared)
    ]
    costs = [(Quantity(name), label) for name, label in COST_LABELS.items()]
    rows += [
        (
            f"{label}{ARROWS[q.metric.higher_is_better]}",
            (cell_of(q.metric, numbers[q]), *(_ratio(compared, row, q) for row in compared.differences)),
        )
        for q, label in costs
        if q in numbers
    ]
    heads = (first, *(f"against {row}" for row in compared.differences))
    return ReportTable(title="Verdict", of="measure", heads=heads, rows=tuple(rows))


def judged_quantities(compared: Compared) -> list[Quantity]:
    """Return the measured quantities of the verdict.

    The mean represents several near OOD sets, or several far OOD sets.
    """
    report = compared.reports[0]
    judged_scopes = {None, *(scope.judged for scope in added("scopes")), *_judged_scopes(report)}
    return [
        q
        for name in JUDGED_METRICS
        for q in compared.quantities
        if q.metric.name == name
        and q.scope in judged_scopes
        and (
            q.metric.needs is not MetricNeeds.OOD
            or q.by(report.ood_scores) in report.ood_scores[:MOST_SCORES]
        )
    ]


def _judged_scopes(report: Report) -> tuple[str, ...]:
    if not (report.near and report.far):
        return scopes(report)[:1]
    kinds = {"near": report.near, "far": report.far}
    return tuple(kind if len(sets) > 1 else sets[0] for kind, sets in kinds.items())


def _difference_cell(compared: Compared, row: str, quantity: Quantity) -> Cell:
    """Return a cell with the judgement of the first row against another row, and the difference."""
    difference = compared.differences[row].get(quantity)
    if difference is None:
        return Cell()
    if quantity.name in CALIBRATED and not compared.scaled_alike(row):
        return Cell(WITHHELD)
    cell = difference_cell(quantity.metric, difference, compared.smallest)
    return Cell(cell.word or UNCLEAR, f"{cell.value} {cell.note}".rstrip(), cell.word)


def _ratio(compared: Compared, row: str, quantity: Quantity) -> Cell:
    mine, theirs = compared.rows[compared.names[0]][quantity], compared.rows[row].get(quantity)
    return Cell(f"{mine.value / theirs.value:.2g} times") if theirs is not None and theirs.value else Cell()


def judgements(compared: Compared) -> dict[str, dict[Quantity, str]]:
    """Return the judgement of the first row against each other row: one of `WORDS` per quantity, by row name.

    Quantities without a difference are left out.
    """
    return {
        row: {
            q: word for q in judged_quantities(compared) if (word := _difference_cell(compared, row, q).value)
        }
        for row in compared.differences
    }


def sentence(compared: Compared) -> str:
    """Return the most detailed verdict of at most `MOST_WORDS` words, one sentence.

    If the accuracy of the first row does not exceed guessing, a sentence with this fact comes first.
    """
    verdict = next(text for text in _sentences(compared) if len(text.split()) <= MOST_WORDS)
    return f"{guessing(compared)} {verdict}".lstrip()


def guessing(compared: Compared) -> str:
    """Return the sentence that the first row is no more accurate than the most frequent class, or empty text.

    Reports without results for every class have no sentence.
    """
    first, by_class = compared.reports[0].rows[0], compared.reports[0].rows[0].by_class
    if by_class is None or len(by_class.classes) < by_class.total or "accuracy" not in first.values:
        return ""
    largest = max(by_class.classes, key=lambda hits: hits.count)
    share = largest.count / sum(hits.count for hits in by_class.classes)
    accuracy = first.values["accuracy"].value
    if accuracy > share:
        return ""
    return (
        f"The accuracy of {first.name}, {accuracy:.3f}, does not exceed guessing: {share:.3f} of the samples "
        f"have the class {largest.name}."
    )


def _sentences(compared: Compared) -> Iterator[str]:
    """Yield the verdict in sentences of decreasing length.

    The last sentence names no model, to bound the length.
    """
    first, others = compared.names[0], [*compared.differences]
    labels_by_row = {
        row: {word: [q.label for q in words if words[q] == word] for word in {*words.values()}}
        for row, words in judgements(compared).items()
    }
    if not others:
        unknown = "is the only model on this page, so there is no comparison"
        yield from (f"{first} {unknown}.", f"The model {unknown}.")
        return
    if not any(labels_by_row.values()):
        missing = f"has no number of {', '.join(JUDGED_METRICS)} to compare with"
        yield from (f"{first} {missing} {listed(others)}.", f"The first model {missing} the others.")
        return
    if len(others) == 1:
        yield f"{_in_words(compared, others[0], labels_by_row[others[0]])}{_at_cost(compared, others[0])}."
    for cost in (True, False):
        yield f"{first} is {'; '.join(_in_counts(compared, labels_by_row, cost=cost))}."
    counts = Counter(
        word for by_word in labels_by_row.values() for word, labels in by_word.items() for _ in labels
    )
    judgement = ", ".join(f"{word} in {counts[word]}" for word in WORDS if counts[word])
    yield f"{first} against {counted(len(others), 'model')}, {counted(counts.total(), 'comparison')}: {judgement}."
    yield f"The first model against the others, {counted(counts.total(), 'comparison')}: {judgement}."


def _in_words(compared: Compared, row: str, labels: dict[str, list[str]]) -> str:
    words = [word for word in WORDS if word in labels]
    parts = [f"{word} in {listed(labels[word])}" for word in words]
    first, than = compared.names[0], {BETTER: f" than {row}", WORSE: f" than {row}", LEVEL: f" with {row}"}
    if words[0] not in than:
        return f"{first} against {row}: {', '.join(parts)}"
    return f"{first} is {words[0]}{than[words[0]]}{', '.join(parts).removeprefix(words[0])}"


def _in_counts(
    compared: Compared, labels_by_row: Mapping[str, dict[str, list[str]]], *, cost: bool
) -> Iterator[str]:
    """Yield a clause per other row: the number of measures in which the first row is better, and worse.

    The total number of measures is left out if it equals the total of the previous row.

    Args:
        compared: The comparison.
        labels_by_row: Labels of the quantities with each judgement, by the name of the other row.
        cost: Whether a clause ends with the ratio of multiply-accumulates.
    """
    previous = 0
    for row, labels in labels_by_row.items():
        better, worse = (len(labels.get(word, ())) or "none" for word in (BETTER, WORSE))
        measures = sum(map(len, labels.values()))
        of = f" of {counted(measures, 'measure')}" if measures != previous else ""
        at = _at_cost(compared, row) if cost else ""
        if labels.keys() == {LEVEL}:
            judgement = f"level with {row} in all{of.removeprefix(' of')}"
        else:
            judgement = f"better than {row} in {better}{of}, worse in {worse}"
        yield f"{judgement}{at.removesuffix(' its compute') if previous else at}"
        previous = measures


def _at_cost(compared: Compared, row: str) -> str:
    macs = Quantity("macs")
    ratio = _ratio(compared, row, macs).value if macs in compared.rows[compared.names[0]] else ""
    return f", at {ratio} its compute" if ratio else ""


def remarks(compared: Compared) -> Iterator[str]:
    """Yield remarks on the verdict: thresholds, prediction sets, omitted comparisons, and warnings."""
    yield from (
        f"{row.name}: {guarantee.summary}."
        for report in (*compared.reports, *compared.tests)
        for row in report.rows
        for guarantee in (row.known_test, row.threshold, row.sets)
        if guarantee is not None
    )
    if withheld := [row for row, words in judgements(compared).items() if WITHHELD in words.values()]:
        yield (
            f"Calibration and NLL are not compared with {listed(withheld)}: only one of the two stores a temperature. "
            "`hydractl eval --temperature DATA` fits one for every row."
        )
    yield from compared.notes
